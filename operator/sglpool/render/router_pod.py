"""The pod of a router: an init step that writes Envoy's first files, Envoy, and the picker.

It fits Pod Security level `restricted`. Only the picker gets a token of the API server and the API keys, only Envoy
the TLS key. Not here: the Deployment around it (`router`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sglpool import __version__
from sglpool.api import names
from sglpool.api.base import Manifest, SecretKey
from sglpool.api.engine import GPU_RESOURCE
from sglpool.api.pool import Pool
from sglpool.api.quantity import amount
from sglpool.render import router_config
from sglpool.render.envoy.bootstrap import arguments
from sglpool.render.envoy.shape import RouterShape
from sglpool.render.pods import tolerations
from sglpool.render.quantities import canonical_amount
from sglpool.render.router_deadlines import termination_grace_period_s
from sglpool.render.router_ports import (
    HEALTH_PORT,
    HEALTH_PORT_NAME,
    HTTP_PORT,
    HTTP_PORT_NAME,
    STATE_PORT,
    STATE_PORT_NAME,
)
from sglpool.render.volumes import Volume
from sglpool.routing.pickerconfig import AUTHZ_SOCKET, CONFIG_PATH, DRAINED_MARKER, LEAVING_MARKER, SHARED_DIR

PICKER_IMAGE = f"sglpool/sglpool:v{__version__}"
ENVOY_IMAGE = "envoyproxy/envoy:v1.40.0"
"""The version that the contract tests run."""

USER_ID = 65532
"""The user of both containers: they share sockets and files."""

SHARED_BYTES = 64 * 2**20
"""Limit of the shared folder: an access log that is emptied all the time, and a snapshot of homes."""

ENVOY_CPUS = 1
ENVOY_MEMORY = "512Mi"
"""Room for some hundred requests of half a megabyte that wait for their answer, kept for a second try."""

PICKER_RESOURCES: Manifest = {"requests": {"cpu": "250m", "memory": "128Mi"}}

SPREAD_WEIGHT = 100
_TOKEN_DIR = "/var/run/secrets/kubernetes.io/serviceaccount"
_TOKEN_LIFE_S = 3607
"""What the API server gives every pod by itself."""

_WAIT_FOR_STREAMS = f"until [ -e {SHARED_DIR}/{DRAINED_MARKER} ]; do sleep 1; done"
_LEAVE = f"touch {SHARED_DIR}/{LEAVING_MARKER}; {_WAIT_FOR_STREAMS}"

PICKER_START_S = 120
"""Longest start of a picker: it lists pods, asks its siblings for their homes and polls each replica once."""

PICKER_LIVENESS_FAILURES = 6
"""Half a minute: its supervisor has ended a picker that hangs after a quarter."""

PICKER_KILL_GRACE_S = 2
"""Of a picker that hangs: it has nothing to finish, and preStop would wait for what it will never write."""


@dataclass(frozen=True, slots=True)
class _Volumes:
    """Volumes by who mounts them."""

    both: tuple[Volume, ...]
    envoy: tuple[Volume, ...]
    picker: tuple[Volume, ...]

    def all(self) -> list[Manifest]:
        """`volumes` of the pod."""
        return [volume.volume() for volume in (*self.both, *self.envoy, *self.picker)]


def router_pod_template(pool: Pool, shape: RouterShape, *, configmap_name: str) -> Manifest:
    """`spec.template` of the router's Deployment."""
    return {
        "metadata": {
            "labels": names.child_labels(pool.name, names.COMPONENT_ROUTER),
            "annotations": {"kubectl.kubernetes.io/default-container": names.ENVOY_CONTAINER},
        },
        "spec": _pod_spec(pool, shape, configmap_name),
    }


def placement(pool: Pool) -> Manifest:
    """What pods beside the engines share with them: priority, credentials for images, tolerations."""
    template = pool.spec.template
    spec: Manifest = {"tolerations": tolerations(template.tolerations)}
    if template.priority_class_name is not None:
        spec["priorityClassName"] = template.priority_class_name
    if template.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret.name} for secret in template.image_pull_secrets]
    return spec


def off_the_gpus() -> Manifest:
    """Node affinity that prefers nodes without GPUs: there a router is in nobody's way, and holds no GPU node up."""
    term = {"key": f"{GPU_RESOURCE}.present", "operator": "DoesNotExist"}
    return {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": SPREAD_WEIGHT, "preference": {"matchExpressions": [term]}}
        ]
    }


def container_security() -> Manifest:
    """Of a container that needs nothing from its node."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def pod_security(user_id: int) -> Manifest:
    """Of a pod at level `restricted`."""
    return {
        "runAsNonRoot": True,
        "runAsUser": user_id,
        "runAsGroup": user_id,
        "fsGroup": user_id,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _pod_spec(pool: Pool, shape: RouterShape, configmap_name: str) -> Manifest:
    volumes = _volumes(pool, configmap_name)
    return {
        "serviceAccountName": names.router_name(pool.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": termination_grace_period_s(),
        "securityContext": pod_security(USER_ID),
        "affinity": {"nodeAffinity": off_the_gpus(), "podAntiAffinity": _apart(pool)},
        **placement(pool),
        "initContainers": [_init_container(pool, volumes)],
        "containers": [_envoy_container(pool, shape, volumes), _picker_container(pool, volumes)],
        "volumes": volumes.all(),
    }


def _apart(pool: Pool) -> Manifest:
    """Routers on different nodes, where there are some: a wish, since a router on a full node beats none."""
    selector = {"matchLabels": names.component_selector(pool.name, names.COMPONENT_ROUTER)}
    term = {"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}
    return {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": SPREAD_WEIGHT, "podAffinityTerm": term}],
    }


def _init_container(pool: Pool, volumes: _Volumes) -> Manifest:
    """Envoy exits when a file that it watches is missing: the first ones are there before it starts."""
    return _sglpool_container(pool, "files", ["picker", "--init", "--config", CONFIG_PATH], volumes)


def _envoy_container(pool: Pool, shape: RouterShape, volumes: _Volumes) -> Manifest:
    given = pool.spec.router.resources
    requests = {"cpu": str(ENVOY_CPUS), "memory": ENVOY_MEMORY} | _canonical(given.requests)
    limits = _canonical(given.limits)
    # A request above the limit is refused; where the user limits without requesting, both are the limit.
    requests |= {name: value for name, value in limits.items() if name not in given.requests}
    return {
        "name": names.ENVOY_CONTAINER,
        "image": pool.spec.router.envoy_image or ENVOY_IMAGE,
        "command": ["envoy"],
        # Envoy would count the cores of the machine, not those that the pod may use.
        "args": list(arguments(shape, concurrency=_threads(limits.get("cpu") or requests["cpu"]))),
        "ports": [_port(HTTP_PORT_NAME, HTTP_PORT), _port(HEALTH_PORT_NAME, HEALTH_PORT)],
        "resources": {"requests": requests} | ({"limits": limits} if limits else {}),
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        # No liveness probe: a kubelet runs preStop before that kill too, and the picker would take it for the end.
        "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", _LEAVE]}}},
        "startupProbe": _probe("/healthz", HEALTH_PORT_NAME, period_s=1, timeout_s=2, failures=60),
        "readinessProbe": _probe("/readyz", HEALTH_PORT_NAME, period_s=2, timeout_s=2, failures=2),
        "volumeMounts": [volume.mount() for volume in (*volumes.both, *volumes.envoy)],
    }


def _picker_container(pool: Pool, volumes: _Volumes) -> Manifest:
    """Without a readiness probe: Envoy serves on when the picker hangs, so the pod must stay in its Service.

    For the same reason a picker that dies or hangs is started again inside the container, and the liveness probe waits
    until that has had its time. But a new pod gets no request before its picker knows the replicas and answers Envoy:
    until then all would get 503.
    """
    answers = ["test", "-S", f"{SHARED_DIR}/{AUTHZ_SOCKET}"]
    arguments = ["picker", "--supervise", "--config", CONFIG_PATH]
    return _sglpool_container(pool, names.PICKER_CONTAINER, arguments, volumes) | {
        "ports": [_port(STATE_PORT_NAME, STATE_PORT)],
        # It leads the way out, so it stays as long as Envoy does.
        "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", _WAIT_FOR_STREAMS]}}},
        "startupProbe": {
            "exec": {"command": answers},
            "periodSeconds": 1,
            "timeoutSeconds": 2,
            "failureThreshold": PICKER_START_S,
            "terminationGracePeriodSeconds": PICKER_KILL_GRACE_S,
        },
        "livenessProbe": {
            **_probe("/healthz", STATE_PORT_NAME, period_s=5, timeout_s=3, failures=PICKER_LIVENESS_FAILURES),
            "terminationGracePeriodSeconds": PICKER_KILL_GRACE_S,
        },
    }


def _sglpool_container(pool: Pool, name: str, arguments: list[str], volumes: _Volumes) -> Manifest:
    return {
        "name": name,
        "image": pool.spec.router.image or pool.router_image or PICKER_IMAGE,
        "command": ["sglpool"],
        "args": arguments,
        "env": [
            _from_field("POD_NAME", "metadata.name"),
            _from_field("POD_UID", "metadata.uid"),
            _from_field("POD_IP", "status.podIP"),
        ],
        "resources": {"requests": dict(PICKER_RESOURCES["requests"])},
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [volume.mount() for volume in (*volumes.both, *volumes.picker)],
    }


def _volumes(pool: Pool, configmap_name: str) -> _Volumes:
    router = pool.spec.router
    shared = {"emptyDir": {"medium": "Memory", "sizeLimit": f"{SHARED_BYTES // 2**20}Mi"}}
    both = (
        Volume("shared", shared, SHARED_DIR),
        Volume("config", {"configMap": {"name": configmap_name}}, router_config.CONFIG_DIR, read_only=True),
    )
    envoy, picker = [], [Volume("token", _token(), _TOKEN_DIR, read_only=True)]
    if router.tls is not None:
        envoy.append(Volume("tls", _secret(router.tls.secret.name), router_config.TLS_DIR, read_only=True))
    if router.auth is not None:
        secret = _secret(router.auth.api_keys_secret.name)
        picker.append(Volume("api-keys", secret, router_config.API_KEYS_DIR, read_only=True))
    valkey = router.session_store.valkey if router.session_store is not None else None
    if valkey is not None and valkey.password_secret is not None:
        secret = _one_key(valkey.password_secret, router_config.STORE_PASSWORD_FILE)
        picker.append(Volume("store", secret, router_config.STORE_SECRET_DIR, read_only=True))
    if valkey is not None and valkey.ca_secret is not None:
        secret = _one_key(valkey.ca_secret, router_config.STORE_CA_FILE)
        picker.append(Volume("store-ca", secret, router_config.STORE_CA_DIR, read_only=True))
    return _Volumes(both=both, envoy=tuple(envoy), picker=tuple(picker))


def _token() -> Manifest:
    """What `automountServiceAccountToken` would mount, for one container alone."""
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": _TOKEN_LIFE_S}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {
            "downwardAPI": {
                "items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]
            }
        },
    ]
    return {"projected": {"sources": sources}}


def _secret(name: str) -> Manifest:
    return {"secret": {"secretName": name}}


def _one_key(secret: SecretKey, path: str) -> Manifest:
    return {"secret": {"secretName": secret.name, "items": [{"key": secret.key, "path": path}]}}


def _probe(path: str, port: str, *, period_s: int, timeout_s: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period_s,
        "timeoutSeconds": timeout_s,
        "failureThreshold": failures,
    }


def _port(name: str, number: int) -> Manifest:
    return {"name": name, "containerPort": number, "protocol": "TCP"}


def _from_field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _canonical(amounts: dict[str, int | str]) -> dict[str, str]:
    return {name: canonical_amount(value) for name, value in amounts.items()}


def _threads(cpus: str) -> int:
    """Worker threads for an amount of CPU: whole cores, rounded up."""
    cores = amount(cpus)
    return 1 if cores is None else max(1, math.ceil(cores))
