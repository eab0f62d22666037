"""The small Valkey that several routers share, when the pool runs it: one pod, nothing on disk.

What it holds are hints: when it is gone, routers go on with what they know themselves. Not here: a server of the
user's, of which only the URL matters (`router_config`).
"""

from __future__ import annotations

from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.api.pool import ManagedValkey, Pool
from sglpool.render.metadata import child_metadata
from sglpool.render.quantities import binary_quantity
from sglpool.render.router_access import tcp
from sglpool.render.router_pod import container_security, off_the_gpus, placement, pod_security

PORT_NAME = "valkey"
USER_ID = 999
"""The user of the official image."""
DATA_SHARE_PERCENT = 75
"""Of the container's memory; the rest is for connections and fragmentation."""


def store(pool: Pool, chosen: str) -> tuple[Manifest, ...]:
    """The store's objects in the order in which to apply them; none unless the pool runs one.

    Args:
        pool: The pool.
        chosen: Hash of what the user chose for the router.
    """
    wanted = pool.spec.router.session_store
    if wanted is None or wanted.managed is None:
        return ()
    return _service(pool), _network_policy(pool), _deployment(pool, wanted.managed, chosen)


def _service(pool: Pool) -> Manifest:
    port = {"name": PORT_NAME, "port": names.STORE_PORT, "protocol": "TCP", "targetPort": PORT_NAME}
    spec = {"type": "ClusterIP", "selector": _selector(pool), "ports": [port]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(pool), "spec": spec}


def _network_policy(pool: Pool) -> Manifest:
    """It has no password: only the routers reach it."""
    routers = names.component_selector(pool.name, names.COMPONENT_ROUTER)
    spec = {
        "podSelector": {"matchLabels": _selector(pool)},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": {"matchLabels": routers}}], "ports": [tcp(names.STORE_PORT)]}],
    }
    metadata = _metadata(pool)
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}


def _deployment(pool: Pool, managed: ManagedValkey, chosen: str) -> Manifest:
    labels = names.child_labels(pool.name, names.COMPONENT_STORE)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(pool) | {"annotations": {names.ANNOTATION_SPEC_HASH: chosen}},
        "spec": {
            "replicas": 1,
            # Two at a time would be two memories behind one name.
            "strategy": {"type": "Recreate"},
            "revisionHistoryLimit": 0,
            "selector": {"matchLabels": _selector(pool)},
            "template": {"metadata": {"labels": labels}, "spec": _pod_spec(pool, managed)},
        },
    }


def _pod_spec(pool: Pool, managed: ManagedValkey) -> Manifest:
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 10,
        "securityContext": pod_security(USER_ID),
        "affinity": {"nodeAffinity": off_the_gpus()},
        **placement(pool),
        "containers": [_container(managed)],
    }


def _container(managed: ManagedValkey) -> Manifest:
    memory = binary_quantity(managed.memory)
    data_bytes = managed.memory * DATA_SHARE_PERCENT // 100
    probe = {"tcpSocket": {"port": PORT_NAME}, "periodSeconds": 5, "timeoutSeconds": 3, "failureThreshold": 3}
    return {
        "name": "valkey",
        "image": managed.image,
        "command": ["valkey-server"],
        "args": [
            "--bind", "0.0.0.0",
            "--port", str(names.STORE_PORT),
            # It is closed by network policy, and holds nothing secret: keys are hashes, values names of pods.
            "--protected-mode", "no",
            "--save", "",
            "--appendonly", "no",
            "--maxmemory", str(data_bytes),
            "--maxmemory-policy", "volatile-lru",
        ],
        "ports": [{"name": PORT_NAME, "containerPort": names.STORE_PORT, "protocol": "TCP"}],
        "resources": {"requests": {"cpu": "100m", "memory": memory}, "limits": {"memory": memory}},
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "readinessProbe": probe,
        "livenessProbe": {**probe, "periodSeconds": 10, "failureThreshold": 6},
    }  # fmt: skip


def _selector(pool: Pool) -> dict[str, str]:
    return names.component_selector(pool.name, names.COMPONENT_STORE)


def _metadata(pool: Pool) -> Manifest:
    labels = names.child_labels(pool.name, names.COMPONENT_STORE)
    return child_metadata(pool, name=names.store_name(pool.name), labels=labels)
