"""The pod template of an engine: a weights init container and the server under its launcher.

Everything that a replica is, and nothing that scales. Not here: the StatefulSet around it, what the scripts do
(`templates/`), the server's arguments (`render.argv`).
"""

from __future__ import annotations

from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.api.engine import Toleration
from sglpool.render import deadlines, scripts
from sglpool.render.children import HTTP_PORT_NAME
from sglpool.render.environment import engine_environment, weights_environment
from sglpool.render.metadata import engine_labels
from sglpool.render.replica import Replica
from sglpool.render.resources import engine_resources, weights_resources
from sglpool.render.volumes import SHM_VOLUME, Volume, pod_volumes

SERVE_COMMAND = ("sglang", "serve")

STARTUP_PERIOD_S = 10
READINESS_PERIOD_S = 5
READINESS_TIMEOUT_S = 5
"""/ready answers in milliseconds, and refuses at once after SIGTERM."""
EXEC_TIMEOUT_S = 5

GPU_TAINT = "nvidia.com/gpu"
PACKING_WEIGHT = 100


def pod_template(replica: Replica, *, argv: tuple[str, ...], configmap_name: str) -> Manifest:
    """`spec.template` of a StatefulSet."""
    template = replica.pool.spec.template
    annotations = {"kubectl.kubernetes.io/default-container": names.ENGINE_CONTAINER}
    return {
        "metadata": {
            "labels": engine_labels(replica.pool, replica.gpu.name) | template.labels,
            "annotations": annotations | template.annotations,
        },
        "spec": _pod_spec(replica, argv=argv, configmap_name=configmap_name),
    }


def _pod_spec(replica: Replica, *, argv: tuple[str, ...], configmap_name: str) -> Manifest:
    template = replica.pool.spec.template
    volumes = pod_volumes(replica, configmap_name=configmap_name)
    spec: Manifest = {
        "serviceAccountName": template.service_account_name or names.engine_name(replica.pool.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": deadlines.termination_grace_period_s(),
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "affinity": _affinity(replica),
        "tolerations": tolerations(template.tolerations),
        "initContainers": [_weights_container(replica, volumes)],
        "containers": [_engine_container(replica, argv, volumes)],
        "volumes": [volume.volume() for volume in volumes],
    }
    if template.node_selector:
        spec["nodeSelector"] = dict(template.node_selector)
    if template.priority_class_name is not None:
        spec["priorityClassName"] = template.priority_class_name
    if template.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret.name} for secret in template.image_pull_secrets]
    return spec


def _weights_container(replica: Replica, volumes: tuple[Volume, ...]) -> Manifest:
    """Downloads or verifies the weights, so that a broken file costs a second and not a whole load."""
    engine = replica.pool.spec.engine
    environment = weights_environment(replica)
    return {
        "name": names.WEIGHTS_CONTAINER,
        "image": engine.image,
        "imagePullPolicy": engine.image_pull_policy,
        "command": list(scripts.WEIGHTS_COMMAND),
        **({"env": environment} if environment else {}),
        "resources": weights_resources(),
        "securityContext": _security_context(replica, capabilities=()),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [volume.mount() for volume in volumes if volume.name != SHM_VOLUME],
    }


def _engine_container(replica: Replica, argv: tuple[str, ...], volumes: tuple[Volume, ...]) -> Manifest:
    engine, security = replica.pool.spec.engine, replica.pool.spec.template.security_context
    added = security.capabilities.add if security and security.capabilities else ()
    return {
        "name": names.ENGINE_CONTAINER,
        "image": engine.image,
        "imagePullPolicy": engine.image_pull_policy,
        "command": list(scripts.LAUNCH_COMMAND),
        "args": [*SERVE_COMMAND, *argv],
        "env": engine_environment(replica),
        "ports": [{"name": HTTP_PORT_NAME, "containerPort": names.ENGINE_PORT, "protocol": "TCP"}],
        "resources": engine_resources(replica),
        "securityContext": _security_context(replica, capabilities=added),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "lifecycle": {"preStop": {"exec": {"command": list(scripts.PRESTOP_COMMAND)}}},
        "startupProbe": _startup_probe(replica),
        "readinessProbe": _readiness_probe(),
        "livenessProbe": _liveness_probe(),
        "volumeMounts": [volume.mount() for volume in volumes],
    }


def _startup_probe(replica: Replica) -> Manifest:
    """Passes once the launcher has warmed the engine; until then neither of the other probes runs."""
    return {
        "exec": {"command": list(scripts.STARTUP_COMMAND)},
        "periodSeconds": STARTUP_PERIOD_S,
        "timeoutSeconds": EXEC_TIMEOUT_S,
        "failureThreshold": deadlines.startup_failure_threshold(
            ready_timeout_s=replica.pool.spec.engine.startup_timeout, period_s=STARTUP_PERIOD_S
        ),
    }


def _readiness_probe() -> Manifest:
    return {
        "httpGet": {"path": "/ready", "port": HTTP_PORT_NAME},
        "periodSeconds": READINESS_PERIOD_S,
        "timeoutSeconds": READINESS_TIMEOUT_S,
        "failureThreshold": 3,
    }


def _liveness_probe() -> Manifest:
    """The script counts failures as the kubelet does, to know when a restart is next: one number for both."""
    return {
        "exec": {"command": list(scripts.LIVENESS_COMMAND)},
        "periodSeconds": deadlines.LIVENESS_PERIOD_S,
        "timeoutSeconds": deadlines.liveness_timeout_s(),
        "failureThreshold": deadlines.LIVENESS_FAILURES,
        "terminationGracePeriodSeconds": deadlines.LIVENESS_KILL_GRACE_S,
    }


def _security_context(replica: Replica, *, capabilities: tuple[str, ...]) -> Manifest:
    """The image's own user without any privilege, plus what the user asked for."""
    dropped: Manifest = {"drop": ["ALL"]}
    context: Manifest = {
        "allowPrivilegeEscalation": False,
        "capabilities": dropped | ({"add": list(capabilities)} if capabilities else {}),
    }
    security = replica.pool.spec.template.security_context
    if security is None:
        return context
    chosen = {
        "runAsUser": security.run_as_user,
        "runAsGroup": security.run_as_group,
        "runAsNonRoot": security.run_as_non_root,
    }
    return context | {key: value for key, value in chosen.items() if value is not None}


def _affinity(replica: Replica) -> Manifest:
    """Nodes of the GPU type by their exact labels; replicas of one pool together, to leave whole nodes free."""
    gpu = replica.gpu
    term = {"key": gpu.node_label_key, "operator": "In", "values": list(gpu.node_label_values)}
    affinity: Manifest = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}
        }
    }
    if replica.gpus_per_pod < gpu.gpus_per_node:
        selector = {"matchLabels": names.engine_selector(replica.pool.name, gpu.name)}
        neighbours = {"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}
        affinity["podAffinity"] = {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": PACKING_WEIGHT, "podAffinityTerm": neighbours}
            ]
        }
    return affinity


def tolerations(extra: tuple[Toleration, ...]) -> list[Manifest]:
    """The GPU nodes' taint, and what the user added."""
    own: Manifest = {"key": GPU_TAINT, "operator": "Exists", "effect": "NoSchedule"}
    given = (toleration.model_dump(mode="json", by_alias=True, exclude_none=True) for toleration in extra)
    return [own, *(toleration for toleration in given if toleration != own)]
