"""The autoscaler in the words of the API: its policy out of a pool's spec, its decisions into a pool's status.

What is written never ticks: figures are rounded, and the caller shows the same ones for a while. Not here: deciding
(`scaling`), reading load (`signals`), and the steps that a decision leads to (`plan.planner`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sglpool.api.base import Manifest
from sglpool.api.conditions import TABLE, Condition, iso
from sglpool.api.pool import Pool
from sglpool.plan.observed import ObservedPod
from sglpool.scaling import Decision, Policy, Reason, TypePolicy
from sglpool.sizing.pools import SizedGPU

HISTORY = 5
"""Changes of size that status remembers."""
KV_STEP_PERCENT = 5
MAX_PROBLEMS = 2
"""Missing readings that a message lists; the others are counted."""
_DIGITS = 3
_MAX_WORDS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Load of a pool, as status shows it.

    Attributes:
        running_requests: Requests in flight, None if unknown.
        kv_utilization_percent: KV cache in use, in steps, None if unknown.
    """

    running_requests: int | None = None
    kv_utilization_percent: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the autoscaler has to say about a pool; the same for a minute, unless something changes.

    Attributes:
        decision: The last decision; None for a pool of fixed size, or while none was made.
        load: The pool's load.
        problems: What could not be read, and why.
    """

    decision: Decision | None = None
    load: Load = Load()
    problems: tuple[str, ...] = ()


def policy_of(pool: Pool, sized: Sequence[SizedGPU]) -> Policy | None:
    """What the autoscaler has to follow; None for a pool of fixed size."""
    spec = pool.spec.autoscaling
    if spec is None:
        return None
    return Policy(
        types=tuple(_type_policy(one) for one in sized),
        min_replicas=spec.min_replicas,
        max_replicas=spec.max_replicas,
        target_kv_utilization=spec.target_kv_utilization_percent / 100,
        startup_timeout_s=float(pool.spec.engine.startup_timeout),
    )


def _type_policy(one: SizedGPU) -> TypePolicy:
    target = one.fit.target_running_requests if one.fit is not None else one.entry.target_running_requests
    return TypePolicy(
        type=one.entry.type,
        target_running_requests=target or 1,
        min_replicas=one.entry.min_replicas,
        max_replicas=one.entry.max_replicas,
        max_running_requests=one.request.max_running_requests if one.request is not None else None,
        usable=one.feasible,
    )


def kv_percent(used_tokens: float, total_tokens: float) -> int | None:
    """KV in use in steps of 5%, so that a pool at rest is not written; None where there is no KV."""
    if total_tokens <= 0:
        return None
    steps = round(100 * used_tokens / total_tokens / KV_STEP_PERCENT)
    # A little is not nothing: 0 is shown only when nothing is in use.
    return min(100, max(steps, 1 if used_tokens > 0 else 0) * KV_STEP_PERCENT)


def scaling_condition(pool: Pool, told: Told | None) -> Condition:
    """Condition ScalingActive."""
    if pool.spec.autoscaling is None:
        return Condition("ScalingActive", "Disabled", "The pool has fixed replicas.")
    if told is None or told.decision is None:
        return _before_the_first_decision(pool)
    reason = _CONDITIONS.get(told.decision.reason, "ValidMetrics")
    words = _MESSAGES[reason].format(problems=_listed(told.problems), message=told.decision.message)
    return Condition("ScalingActive", reason, words)


def _before_the_first_decision(pool: Pool) -> Condition:
    """What was said before the operator started still stands: a restart alone writes no status."""
    for stored in pool.status.get("conditions") or ():
        reason = stored.get("reason")
        if stored.get("type") == "ScalingActive" and reason in TABLE["ScalingActive"] and reason != "Disabled":
            return Condition("ScalingActive", reason, str(stored.get("message") or reason))
    return Condition("ScalingActive", "Pending", "The load has not been read yet: the size is held within its bounds.")


_HELD = "The size is held within its bounds."
_CONDITIONS: Mapping[Reason, str] = {
    Reason.NO_LOAD_TOTAL: "MetricsUnavailable",
    Reason.REPLICAS_UNREADABLE: "ReplicasUnreadable",
    Reason.CLOCK_JUMPED: "ClockJumped",
    Reason.INVALID_POLICY: "InvalidTarget",
    Reason.AT_MAXIMUM: "AtMaximum",
    Reason.NO_ROOM: "NoRoom",
    Reason.STARTS_FAIL: "StartsFail",
}
"""Decisions that say more than that the autoscaler works."""
_MESSAGES: Mapping[str, str] = {
    "MetricsUnavailable": f"The requests in flight cannot be read. {{problems}}{_HELD}",
    "ReplicasUnreadable": f"Too few replicas can be read. {{problems}}{_HELD}",
    "ClockJumped": f"The operator's clock jumped. {_HELD}",
    "InvalidTarget": f"{{message}} {_HELD}",
    "AtMaximum": "More replicas are needed than the bounds allow: raise autoscaling.maxReplicas or gpus[].maxReplicas.",
    "NoRoom": "More replicas are needed, but no GPU type finds a node: condition Scheduled says why.",
    "StartsFail": "More replicas are needed, but they do not become ready: condition Progressing says why.",
    "ValidMetrics": "Load figures are fresh; the autoscaler acts on them.",
}


def _listed(problems: Sequence[str]) -> str:
    """The first problems as a text that ends with a space; empty without any."""
    if not problems:
        return ""
    more = len(problems) - MAX_PROBLEMS
    return " ".join(problems[:MAX_PROBLEMS]) + (f" And {more} more. " if more > 0 else " ")


def autoscaling_status(pool: Pool, desired: int, told: Told | None, *, now_s: float) -> Manifest | None:
    """`status.autoscaling`; None for a pool of fixed size.

    A change of size is found by comparing with what is stored, and so is remembered across restarts.
    """
    if pool.spec.autoscaling is None:
        return None
    stored: Manifest = pool.status.get("autoscaling") or {}
    decision = told.decision if told is not None else None
    status: Manifest = {"desired": desired, **_explained(decision, stored)}
    before, history = stored.get("desired"), list(stored.get("history") or ())
    if isinstance(before, int) and before != desired:
        # Without a decision only the bounds can have changed it.
        reason = str(decision.reason if decision is not None else Reason.BOUNDS)
        change = {"time": iso(now_s), "from": before, "to": desired, "reason": reason}
        history, stored = [change, *history][:HISTORY], {"lastScaleTime": change["time"]}
    if "lastScaleTime" in stored:
        status["lastScaleTime"] = stored["lastScaleTime"]
    if history:
        status["history"] = history
    return status


def _explained(decision: Decision | None, stored: Manifest) -> Manifest:
    """Reason, message and inputs of a decision; before the first one, what is stored."""
    if decision is not None:
        inputs = {name: _rounded(value) for name, value in decision.inputs.items() if math.isfinite(value)}
        return {"reason": str(decision.reason), "message": decision.message[:_MAX_WORDS], "inputs": inputs}
    if "inputs" in stored:
        return {name: stored[name] for name in ("reason", "message", "inputs") if name in stored}
    return {"reason": "Pending", "message": "No decision yet.", "inputs": {}}


def _rounded(value: float) -> float:
    """A figure of three digits, a whole number where it is one."""
    if value == 0:
        return 0
    digits = _DIGITS - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, max(digits, 0))
    return int(rounded) if rounded == int(rounded) else rounded


def load_status(pool: Pool, told: Told | None) -> Manifest | None:
    """`status.load`; what is unknown is left out, and before the first reading what is stored stands."""
    if told is None:
        stored: Manifest | None = pool.status.get("load")
        return stored
    figures = {
        "runningRequests": told.load.running_requests,
        "kvUtilizationPercent": told.load.kv_utilization_percent,
    }
    return {name: value for name, value in figures.items() if value is not None} or None


def scaling_summary(autoscaling: Manifest | None, pods: Iterable[ObservedPod], updated: str) -> str:
    """Column SCALING of `kubectl get`: why the pool has its size, and what moves; empty if nothing is to be said.

    Args:
        autoscaling: `status.autoscaling`.
        pods: The pool's pods.
        updated: How far a roll-out is, such as `2/5`; empty without one.
    """
    leaving = sum(pod.draining for pod in pods)
    words = [str(autoscaling["reason"])] if autoscaling else []
    if updated:
        words.append(f"{updated} updated")
    if leaving:
        words.append(f"{leaving} draining")
    return ", ".join(words)
