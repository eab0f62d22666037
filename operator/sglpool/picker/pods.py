"""A pod, as far as the router cares: is it an engine or a router, may it serve, is it on its way out.

Reads what the API gives and keeps nothing of it: pods are large. Not here: what follows from it (`fleet`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sglpool.api import names

COMPONENT_ENGINE = names.COMPONENT_ENGINE
COMPONENT_ROUTER = names.COMPONENT_ROUTER


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """What counts of a pod.

    Attributes:
        uid: The pod's uid.
        name: Its name.
        component: `engine`, `router`, or whatever its label says.
        ip: Its address, empty while it has none.
        gpu: Its GPU type, as labelled.
        ready: Kubernetes calls it ready.
        ready_since_s: Unix time of its becoming ready, None while it is not.
        restarts: How often its engine was restarted: each time its KV cache is gone.
        terminating: It was deleted, and lives on for its grace period.
        draining: The operator wants it empty.
        drain_deadline_s: Unix time after which the rest moves too, None: no hurry.
        revision: What of its StatefulSet's templates it runs.
        unproven: It is marked as one whose revision gets no traffic yet.
        proven: It is marked as one whose revision may have traffic from now on.
        over: It has ended for good.
    """

    uid: str
    name: str
    component: str
    ip: str
    gpu: str
    ready: bool
    ready_since_s: float | None
    restarts: int
    terminating: bool
    draining: bool
    drain_deadline_s: float | None
    revision: str
    unproven: bool
    proven: bool
    over: bool


def view(pod: Mapping[str, Any]) -> PodView:
    """Read a pod.

    Raises:
        KeyError: It has no name or uid, so it is none.
    """
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    annotations = metadata.get("annotations") or {}
    status = pod.get("status") or {}
    ready = _ready(status)
    draining = annotations.get(names.ANNOTATION_DRAINING) == "true"
    return PodView(
        uid=metadata["uid"],
        name=metadata["name"],
        component=labels.get(names.LABEL_COMPONENT, ""),
        ip=status.get("podIP") or "",
        gpu=labels.get(names.LABEL_GPU, ""),
        ready=ready is not None,
        ready_since_s=ready,
        restarts=_restarts(status),
        terminating="deletionTimestamp" in metadata,
        draining=draining,
        drain_deadline_s=_number(annotations.get(names.ANNOTATION_DRAIN_DEADLINE)) if draining else None,
        revision=labels.get(names.LABEL_REVISION, ""),
        unproven=annotations.get(names.ANNOTATION_UNPROVEN) == "true",
        proven=annotations.get(names.ANNOTATION_UNPROVEN) == "false",
        over=status.get("phase") in ("Succeeded", "Failed"),
    )


def _ready(status: Mapping[str, Any]) -> float | None:
    """Since when the pod is ready, long ago where nobody says; None when it is not."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "Ready" and condition.get("status") == "True":
            return _unix_s(condition.get("lastTransitionTime"))
    return None


def _restarts(status: Mapping[str, Any]) -> int:
    for container in status.get("containerStatuses") or ():
        if container.get("name") == names.ENGINE_CONTAINER:
            return int(container.get("restartCount") or 0)
    return 0


def _unix_s(text: object) -> float:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 1.0


def _number(text: object) -> float | None:
    try:
        return float(str(text))
    except ValueError:
        return None
