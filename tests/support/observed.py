"""Views of StatefulSets and pods for tests: a healthy one in short, with changes."""

from __future__ import annotations

from typing import Any

from sglpool.plan import ObservedPod, ObservedStatefulSet

STATEFULSET_UID = "sts"


def observed_statefulset(
    *, replicas: int, partition: int = 0, current: str = "new", update: str = "new", **changes: Any
) -> ObservedStatefulSet:
    fields: dict[str, Any] = {
        "name": "kimi-b200",
        "uid": STATEFULSET_UID,
        "gpu_type": "B200",
        "owner_uid": "pool",
        "adoptable": False,
        "caught_up": True,
        "spec_hash": "",
        "render_hash": "",
        "hicache_bytes": None,
        "scale_owned": True,
        "service_name": "kimi-engine",
        "selector": {},
        "pod_management_policy": "Parallel",
        **changes,
    }
    return ObservedStatefulSet(
        replicas=replicas, partition=partition, current_revision=current, update_revision=update, **fields
    )


def observed_pod(ordinal: int, **changes: Any) -> ObservedPod:
    gpu_type = changes.get("gpu_type", "B200")
    fields: dict[str, Any] = {
        "name": f"kimi-{gpu_type.lower()}-{ordinal}",
        "uid": f"pod-{gpu_type}-{ordinal}",
        "component": "engine",
        "ordinal": ordinal,
        "gpu_type": gpu_type,
        "owner_uid": STATEFULSET_UID,
        "revision": "new",
        "ready": True,
        "terminating": False,
        "unready_since_s": 0.0,
        "node": "n",
        "gpus": 4,
        "unschedulable": "",
        "waiting": ("", ""),
        "restarts": 0,
        "last_exit": None,
        "last_words": "",
        "oom_killed": False,
        **changes,
    }
    return ObservedPod(**fields)
