"""A decision in words and figures, for status, events and people.

Not here: deciding. Figures of `inputs` are as they were used; whoever shows them rounds.
"""

from collections.abc import Mapping, Sequence

from sglpool.scaling.capacity import Group, capacity
from sglpool.scaling.demand import Need, Reading, peak
from sglpool.scaling.types import Memory, Reason

_ENDINGS = {
    Reason.WITHIN_TARGET: "it stays",
    Reason.WINDOW_OPEN: "it may shrink once the load has been low for longer",
    Reason.REPLICAS_STARTING: "it may shrink once nothing starts any more",
    Reason.WOULD_OVERLOAD: "one replica less would carry too much",
    Reason.GROWTH_LIMITED: "more follow when those that start have got further",
    Reason.STARTS_FAIL: "more are needed, but replicas do not become ready",
    Reason.NO_ROOM: "more are needed, but no node has room for them",
    Reason.AT_MAXIMUM: "more are needed than maxReplicas allows",
    Reason.AT_MINIMUM: "fewer are needed than minReplicas allows",
    Reason.BOUNDS: "the pool's bounds changed",
}


def invalid(wrong: str) -> str:
    """A hold because of the policy."""
    return f"held: {wrong}"


def held(reading: Reading, replicas: int) -> str:
    """A hold because nothing can be said."""
    why = reading.message or "the clock jumped"
    return f"{why}: held at {replicas}"


def decided(reason: Reason, found: Sequence[Group], asked: Need, peak_need: float, wanted: Mapping[str, int]) -> str:
    """A decision with the figures that it rests on."""
    replicas = sum(group.now for group in found)
    if reason is Reason.LOAD_BELOW_TARGET:
        facts = f"at most {peak_need:.0f} requests needed a place, {replicas} replicas have {capacity(found):.0f}"
    else:
        facts = f"{_asks(asked)}, {replicas} replicas have {capacity(found):.0f} places"
    change = _change(found, wanted)
    if not change:
        return f"{facts}: {_ENDINGS[reason]}"
    return f"{facts}: {change}{_why(reason)}"


def _asks(asked: Need) -> str:
    if asked.by_kv > asked.by_requests:
        return f"the KV cache in use needs {asked.by_kv:.0f} places"
    over = "2 readings after a jump" if asked.jumped else "10 s" if asked.urgent else "60 s"
    return f"{asked.mean:.0f} requests in flight (mean of {over}) need {asked.by_requests:.0f} places"


def _change(found: Sequence[Group], wanted: Mapping[str, int]) -> str:
    changes = [(wanted[group.type] - group.now, group.type) for group in found]
    return ", ".join(f"{abs(count)} {'more' if count > 0 else 'fewer'} {name}" for count, name in changes if count)


def _why(reason: Reason) -> str:
    if reason is Reason.SPILLED:
        return ", because pods of a preferred type find no node or do not start"
    if reason is Reason.BOUNDS:
        return ", because some of minReplicas find no node or do not start"
    if reason is Reason.RETURNING:
        return ", because the preferred type has room again"
    return ""


def figures(found: Sequence[Group], reading: Reading, asked: Need | None, memory: Memory) -> dict[str, float]:
    """The figures of a decision, by name."""
    shown = {
        "replicas": float(sum(group.now for group in found)),
        "readyReplicas": float(sum(group.ready for group in found)),
        "startingReplicas": float(sum(group.coming for group in found)),
        "failedReplicas": float(sum(group.failed for group in found)),
        "unschedulableReplicas": float(sum(group.homeless for group in found)),
        "readReplicas": float(reading.fresh),
        "capacityRequests": capacity(found),
    }
    if asked is not None:
        shown |= {
            "inFlight": asked.mean,
            "needRequests": asked.requests,
            "peakNeedRequests": peak(memory),
            "kvUtilization": reading.kv_share,
        }
    return shown
