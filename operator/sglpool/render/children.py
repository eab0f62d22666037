"""Children that all replicas of a pool share: ServiceAccount, headless Service, PodDisruptionBudget.

They change in place and restart nothing. Not here: the StatefulSets and what their pods hold.
"""

from __future__ import annotations

from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.api.pool import Pool
from sglpool.render.metadata import child_metadata, engine_labels

HTTP_PORT_NAME = "http"


def shared_children(pool: Pool) -> tuple[Manifest, ...]:
    """Every child that does not belong to one GPU type, in the order in which to apply them."""
    children = [headless_service(pool), disruption_budget(pool)]
    if pool.spec.template.service_account_name is None:
        children.insert(0, service_account(pool))
    return tuple(children)


def service_account(pool: Pool) -> Manifest:
    """An account without rights and without a token: an engine has no business with the API server."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(pool),
        "automountServiceAccountToken": False,
    }


def headless_service(pool: Pool) -> Manifest:
    """The DNS names of the replicas; only ready ones are published."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(pool),
        "spec": {
            # No publishNotReadyAddresses: the API server drops its false, and the child would look changed by hand.
            "clusterIP": "None",
            "selector": _every_engine(pool),
            "ports": [
                {
                    "name": HTTP_PORT_NAME,
                    "port": names.ENGINE_PORT,
                    "protocol": "TCP",
                    "targetPort": HTTP_PORT_NAME,
                }
            ],
        },
    }


def disruption_budget(pool: Pool) -> Manifest:
    """One replica at a time may be evicted; one that is not ready never holds a node up."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(pool),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": _every_engine(pool)},
        },
    }


def _metadata(pool: Pool) -> Manifest:
    return child_metadata(pool, name=names.engine_name(pool.name), labels=engine_labels(pool))


def _every_engine(pool: Pool) -> dict[str, str]:
    return names.pool_labels(pool.name) | {names.LABEL_COMPONENT: "engine"}
