"""Every deadline of an engine pod, derived from one drain constant.

After deletion of a pod:

    0 s                 the router takes the pod out; preStop sleeps PRESTOP_S for picks under way
    PRESTOP_S           SIGTERM to the launcher, which forwards it; SGLang finishes what it has
    PRESTOP_S + DRAIN_S the launcher kills the engine for good
    + GRACE_MARGIN_S    the kubelet's own SIGKILL, which should find nothing left

Not here: how long a planned removal drains while the pod still lives (`rollout.drainTimeout` of the pool).
"""

from __future__ import annotations

DRAIN_S = 120
"""Seconds between SIGTERM and the final kill. Production keeps engine, hook and kubelet in this order."""

PRESTOP_S = 5
"""Seconds in which a router that watches pods has certainly taken a terminating one out."""

GRACE_MARGIN_S = 30
"""Seconds beyond the drain. An idle SGLang 0.5.23 needs 13 s from SIGTERM to exit; allow 20, and the kill."""

READY_TIMEOUT_S = 3 * 3600
"""Seconds an engine may take to load. Cold loads of 600 GB take 16 min; production allows three hours."""

WARM_UP_TIMEOUT_S = 1800
"""Seconds for all warm-up requests together, which compile kernels on a cold cache."""

LIVENESS_PERIOD_S = 10
"""Seconds between liveness runs (field practice)."""

LIVENESS_FAILURES = 6
"""Failed liveness runs in a row before a restart (field practice)."""

LIVENESS_STILL_RUNS = 3
"""Busy runs in a row without a moving counter that count as a failure."""

LIVENESS_CHAT_S = 30
"""Seconds within which an idle engine must answer a one-token chat completion."""

LIVENESS_READ_S = 5
"""Seconds for one read of /v1/loads or /metrics; both take milliseconds on a healthy engine."""

LIVENESS_DUMP_S = 60
"""Seconds for stacks and GPU state to go to the log before a restart."""

LIVENESS_KILL_GRACE_S = 60
"""Grace period of a restart by liveness (`terminationGracePeriodSeconds` of the probe)."""

HUNG_DRAIN_S = LIVENESS_KILL_GRACE_S - GRACE_MARGIN_S
"""Seconds a server that liveness gave up gets after SIGTERM: it has little left to finish."""


def termination_grace_period_s(drain_s: int = DRAIN_S) -> int:
    """`terminationGracePeriodSeconds` of the engine pod, in seconds."""
    return PRESTOP_S + drain_s + GRACE_MARGIN_S


def liveness_timeout_s() -> int:
    """`timeoutSeconds` of the liveness probe: the longest run, which reads, asks and then dumps."""
    return 2 * LIVENESS_READ_S + LIVENESS_CHAT_S + LIVENESS_DUMP_S + LIVENESS_READ_S


def startup_failure_threshold(*, ready_timeout_s: int = READY_TIMEOUT_S, period_s: int) -> int:
    """`failureThreshold` of the startup probe: the launcher gives up first, and says why."""
    return -(-(ready_timeout_s + WARM_UP_TIMEOUT_S + GRACE_MARGIN_S) // period_s)
