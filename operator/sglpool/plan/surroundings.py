"""What the planner knows of objects around the replicas: Jobs of gates, and nodes.

Small, typed views, like those of `plan.observed`. Not here: what follows from them (`plan.gate`, `plan.nodes`).
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.api.engine import GPU_RESOURCE

JobState = Literal["Running", "Passed", "Failed", "Disrupted"]
DISRUPTED = "PodFailurePolicy"
"""Reason of a failed Job by the only rule that ours have: its pod was taken away, whatever the test would have said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedJob:
    """The Job of a gate.

    Attributes:
        name: metadata.name.
        uid: metadata.uid.
        owner_uid: uid of its controller, empty without one.
        state: What became of it.
        message: Why it failed, in Kubernetes' words.
        pod_uid: The replica that it tests.
        word: What the user's roll-out annotation said when it was made.
    """

    name: str
    uid: str
    owner_uid: str
    state: JobState
    message: str
    pod_uid: str
    word: str

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> "ObservedJob":
        """Read one from the API server's JSON."""
        metadata = manifest["metadata"]
        annotations = metadata.get("annotations") or {}
        conditions = (manifest.get("status") or {}).get("conditions") or ()
        true = {c["type"]: c for c in conditions if c.get("status") == "True"}
        failed = true.get("Failed")
        owners = metadata.get("ownerReferences") or ()
        return cls(
            name=metadata["name"],
            uid=metadata["uid"],
            owner_uid=next((owner["uid"] for owner in owners if owner.get("controller")), ""),
            state=_state_of(failed, complete="Complete" in true),
            message=f"{failed.get('reason', '')}: {failed.get('message', '')}" if failed else "",
            pod_uid=annotations.get(names.ANNOTATION_GATE_POD, ""),
            word=annotations.get(names.ANNOTATION_ROLLOUT, ""),
        )


def _state_of(failed: Manifest | None, *, complete: bool) -> JobState:
    if failed is not None:
        return "Disrupted" if failed.get("reason") == DISRUPTED else "Failed"
    return "Passed" if complete else "Running"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedNode:
    """A node that has pods of the pool.

    Attributes:
        name: metadata.name.
        ready: Whether condition Ready is True.
        since_s: Unix time since which that is so, or since which nobody knows the node.
        deleted: Whether it was there and its object is gone: nothing runs there any more.
        unschedulable: Whether it is cordoned.
        gpus: Allocatable GPUs, None if it says nothing about GPUs.
        gpus_since_s: Unix time since which it has that many, as far as this operator has seen.
    """

    name: str
    ready: bool
    since_s: float
    deleted: bool = False
    unschedulable: bool = False
    gpus: int | None = None
    gpus_since_s: float = 0.0

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> "ObservedNode":
        """Read one from the API server's JSON; since when it has its GPUs is not in there."""
        status, spec = manifest.get("status") or {}, manifest.get("spec") or {}
        ready: Manifest = next((c for c in status.get("conditions") or () if c["type"] == "Ready"), {})
        changed = ready.get("lastTransitionTime")
        gpus = str((status.get("allocatable") or {}).get(GPU_RESOURCE, ""))
        return cls(
            name=manifest["metadata"]["name"],
            ready=ready.get("status") == "True",
            since_s=datetime.fromisoformat(changed).timestamp() if changed else 0.0,
            unschedulable=bool(spec.get("unschedulable")),
            gpus=int(gpus) if gpus.isdecimal() else None,
        )
