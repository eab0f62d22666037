"""Who may talk to whom in a pool: accounts, rights, the Service of the router, disruption, network policies.

A network policy only closes ports where the cluster's network plugin obeys it. Not here: API keys and TLS, which are
Envoy's.
"""

from __future__ import annotations

from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.api.pool import Pool
from sglpool.render.metadata import child_metadata, engine_labels
from sglpool.render.router_ports import HEALTH_PORT, HTTP_PORT, HTTP_PORT_NAME, STATE_PORT


def access(pool: Pool) -> tuple[Manifest, ...]:
    """Everything around the router's pods that does not hold them, in the order in which to apply it."""
    return (
        service_account(pool),
        role(pool),
        role_binding(pool),
        service(pool),
        disruption_budget(pool),
        router_network_policy(pool),
        engine_network_policy(pool),
    )


def service_account(pool: Pool) -> Manifest:
    """The picker's account. Its token is mounted for the picker alone."""
    return _object(pool, "v1", "ServiceAccount", {"automountServiceAccountToken": False})


def role(pool: Pool) -> Manifest:
    """The picker watches pods, and can do nothing else."""
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    return _object(pool, "rbac.authorization.k8s.io/v1", "Role", {"rules": [rule]})


def role_binding(pool: Pool) -> Manifest:
    """The role for the account."""
    name = names.router_name(pool.name)
    return _object(
        pool,
        "rbac.authorization.k8s.io/v1",
        "RoleBinding",
        {
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": pool.namespace}],
        },
    )


def service(pool: Pool) -> Manifest:
    """The pool's endpoint."""
    port = {"name": HTTP_PORT_NAME, "port": HTTP_PORT, "protocol": "TCP", "targetPort": HTTP_PORT_NAME}
    spec = {"type": "ClusterIP", "selector": _routers(pool), "ports": [port]}
    return _object(pool, "v1", "Service", {"spec": spec})


def disruption_budget(pool: Pool) -> Manifest:
    """One router at a time may be evicted. Of a single one too: its successor starts while it ends its streams."""
    spec = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": _routers(pool)},
    }
    return _object(pool, "policy/v1", "PodDisruptionBudget", {"spec": spec})


def router_network_policy(pool: Pool) -> Manifest:
    """The API and its health are open; what the picker knows is for siblings, the operator and Prometheus."""
    spec = {
        "podSelector": {"matchLabels": _routers(pool)},
        "policyTypes": ["Ingress"],
        "ingress": [
            {"ports": [tcp(HTTP_PORT), tcp(HEALTH_PORT)]},
            {"from": [_own(pool, names.COMPONENT_ROUTER), *_operator_and_monitoring()], "ports": [tcp(STATE_PORT)]},
        ],
    }
    return _object(pool, "networking.k8s.io/v1", "NetworkPolicy", {"spec": spec})


def engine_network_policy(pool: Pool) -> Manifest:
    """Engines answer whoever reaches them, their admin paths included: only those who must can."""
    allowed = [
        _own(pool, names.COMPONENT_ROUTER),
        _own(pool, names.COMPONENT_GATE),
        *_operator_and_monitoring(),
    ]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": child_metadata(pool, name=names.engine_name(pool.name), labels=engine_labels(pool)),
        "spec": {
            "podSelector": {"matchLabels": names.component_selector(pool.name, names.COMPONENT_ENGINE)},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": allowed, "ports": [tcp(names.ENGINE_PORT)]}],
        },
    }


def tcp(port: int) -> Manifest:
    """A port of a network policy."""
    return {"protocol": "TCP", "port": port}


def _own(pool: Pool, component: str) -> Manifest:
    return {"podSelector": {"matchLabels": names.component_selector(pool.name, component)}}


def _operator_and_monitoring() -> list[Manifest]:
    """In any namespace, since nothing here says in which they are."""
    return [
        {"namespaceSelector": {}, "podSelector": {"matchLabels": dict(labels)}}
        for labels in (names.OPERATOR_LABELS, names.MONITORING_LABELS)
    ]


def _routers(pool: Pool) -> dict[str, str]:
    return names.component_selector(pool.name, names.COMPONENT_ROUTER)


def _object(pool: Pool, api_version: str, kind: str, fields: Manifest) -> Manifest:
    labels = names.child_labels(pool.name, names.COMPONENT_ROUTER)
    metadata = child_metadata(pool, name=names.router_name(pool.name), labels=labels)
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}
