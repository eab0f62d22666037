"""The generic rules of kstatus, which Flux, Helm and `kubectl wait`-like tools follow.

A port of `GetGenericStatus` and `GetStandardConditionsStatus`, in their order.
"""

from __future__ import annotations

from typing import Any


def kstatus(manifest: dict[str, Any]) -> str:
    """`Terminating`, `InProgress`, `Failed` or `Current`."""
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    if "deletionTimestamp" in metadata:
        return "Terminating"
    observed = status.get("observedGeneration")
    if observed is not None and observed != metadata.get("generation"):
        return "InProgress"
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    if conditions.get("Reconciling", {}).get("status") == "True":
        return "InProgress"
    if conditions.get("Stalled", {}).get("status") == "True":
        return "Failed"
    if "Ready" in conditions and conditions["Ready"]["status"] != "True":
        return "InProgress"
    return "Current"
