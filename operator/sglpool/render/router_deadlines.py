"""Deadlines of a router pod, in the order in which they end.

After deletion of a pod:

    0 s                         the picker sees it and fails readiness; preStop of both containers begins to wait
    LEAVE_S                     load balancers have taken the pod out; Envoy's listeners drain
    LEAVE_S + STREAM_GRACE_S    the longest wait for streams; then the picker writes the marker that preStop waits for
    + GRACE_MARGIN_S            the kubelet's SIGKILL, which should find nothing left

Not here: deadlines of engines (`deadlines`).
"""

from __future__ import annotations

LEAVE_S = 5
"""Seconds in which Services and load balancers have certainly taken an unready pod out."""

STREAM_GRACE_S = 1800
"""Longest stream that a router waits for when it goes."""

GRACE_MARGIN_S = 30


def termination_grace_period_s() -> int:
    """`terminationGracePeriodSeconds` of the router pod, in seconds."""
    return LEAVE_S + STREAM_GRACE_S + GRACE_MARGIN_S
