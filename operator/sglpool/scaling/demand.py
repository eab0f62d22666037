"""What the load asks for, in requests: one reading, its history of a minute, and the largest need of a window.

Not here: how many replicas that makes (`moves`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sglpool.scaling.capacity import Group, ready_capacity
from sglpool.scaling.types import Memory, Policy, Reason, ReplicaSample, Signals

HEAD_ROOM = 0.9
MEAN_S, URGENT_MEAN_S = 60.0, 10.0
JUMP_SHARE, JUMP_DEVIATIONS = 0.5, 2.0
"""A reading that is above the mean before it by this share, and by more than chance makes of requests that come singly:
so many square roots of that mean."""
APART_S = 2.0
"""Readings closer to each other are one: a second decision on the same reading is no second reading."""
MAX_SAMPLES = 32
"""Samples of the demand that are kept, at most: a minute of ticks of 2 s."""
FRESH_SHARE = 0.7
WINDOW_S, WINDOW_COLD_STARTS = 900.0, 1.5
BUCKETS = 30
OVERFULL = 1.05
"""A replica that reports more KV in use than this part of what exists was misread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The load at one moment.

    Attributes:
        problem: why nothing can be said, None if something can.
        message: the problem in words.
        demand: requests in flight and refused conversations.
        unread_demand: requests that replicas without a reading may have beyond that, were they all full.
        kv_share: share of the KV cache in use over the replicas that were read.
        kv_share_full: the same, were all the others full.
        fresh: ready replicas that were read.
        ready: ready replicas.
    """

    problem: Reason | None = None
    message: str = ""
    demand: float = 0.0
    unread_demand: float = 0.0
    kv_share: float = 0.0
    kv_share_full: float = 0.0
    fresh: int = 0
    ready: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Requests that the pool should be able to carry.

    Attributes:
        mean: mean demand that this rests on.
        urgent: whether something waits or was refused, so that the mean is short.
        jumped: whether the last two readings are both far above those before: then they alone are the mean.
        by_requests: what the requests ask for.
        by_kv: what the KV cache asks for.
        careful: the larger of both, with every replica that was not read taken as full: for shrinking.
    """

    mean: float
    urgent: bool
    jumped: bool
    by_requests: float
    by_kv: float
    careful: float

    @property
    def requests(self) -> float:
        """What is asked for, for growing."""
        return max(self.by_requests, self.by_kv)


def read(policy: Policy, signals: Signals, found: Sequence[Group]) -> Reading:
    """Judge what was read, and add it up."""
    targets = {group.type: group.target for group in found}
    ready = sum(group.ready for group in found)
    samples = [sample for sample in signals.replicas if sample.gpu_type in targets]
    fresh = [sample for sample in samples if _fresh(sample, policy.max_age_s)]
    if signals.has_router:
        message = _router_problem(policy, signals)
        if message:
            return Reading(problem=Reason.NO_LOAD_TOTAL, message=message, fresh=len(fresh), ready=ready)
    if len(fresh) < FRESH_SHARE * ready:
        message = f"{len(fresh)} of {ready} ready replicas could be read, less than {FRESH_SHARE:.0%}"
        return Reading(problem=Reason.REPLICAS_UNREADABLE, message=message, fresh=len(fresh), ready=ready)
    return _add_up(signals, fresh, max(0, ready - len(fresh)), max(targets.values()), ready)


def _router_problem(policy: Policy, signals: Signals) -> str:
    if signals.routers_known < 1:
        return "no router carries traffic"
    if signals.routers_read < signals.routers_known:
        return f"{signals.routers_read} of {signals.routers_known} routers could be read"
    if signals.in_flight is None or not 0 <= signals.in_flight < math.inf:
        return "the routers' requests in flight could not be read"
    if not _young(signals.age_s, policy.max_age_s):
        return f"the routers' requests in flight are {signals.age_s:.0f} s old"
    return ""


def _add_up(signals: Signals, fresh: Sequence[ReplicaSample], unread: int, largest_target: int, ready: int) -> Reading:
    used = sum(sample.kv_used_tokens for sample in fresh)
    total = sum(sample.kv_total_tokens for sample in fresh)
    unread_tokens = unread * total / len(fresh) if fresh else 0.0
    refused = max(0, signals.refused_conversations)
    if signals.has_router:
        in_flight, unread_demand = signals.in_flight or 0.0, 0.0
    else:
        running = sum(sample.running for sample in fresh)
        average = running / len(fresh) if fresh else 0.0
        in_flight = running + unread * average
        unread_demand = unread * max(0.0, largest_target - average)
    return Reading(
        demand=in_flight + refused,
        unread_demand=unread_demand,
        kv_share=used / total if total else 0.0,
        kv_share_full=(used + unread_tokens) / (total + unread_tokens) if total else 0.0,
        fresh=len(fresh),
        ready=ready,
    )


def remember_demand(memory: Memory, reading: Reading, now_s: float) -> Memory:
    """The memory with this reading in the last minute's demand; readings older than that go."""
    if reading.problem is not None:
        return memory
    kept = (*memory.demand, (now_s, reading.demand, reading.kv_share))
    return replace(memory, demand=tuple(each for each in kept if each[0] >= now_s - MEAN_S)[-MAX_SAMPLES:])


def need(
    policy: Policy, signals: Signals, reading: Reading, memory: Memory, found: Sequence[Group], now_s: float
) -> Need:
    """What the load asks for. While something waits, a mean of 10 s may raise it, and never lowers it.

    So may the last two readings once both say that the load has jumped: a mean of a minute would take half of that to
    follow, and a single reading may be chance.
    """
    mean, kv_share = _means(memory, now_s - MEAN_S)
    urgent = signals.queued > 0 or signals.refused_conversations > 0
    if urgent:
        latest, latest_kv_share = _means(memory, now_s - URGENT_MEAN_S)
        mean, kv_share = max(mean, latest), max(kv_share, latest_kv_share)
    jumped = _jumped(memory.demand, 2)
    if jumped:
        mean = max(mean, sum(each[1] for each in memory.demand[-2:]) / 2)
    kv_requests = ready_capacity(found) / policy.target_kv_utilization
    unread_share = reading.kv_share_full - reading.kv_share
    by_requests, by_kv = mean / HEAD_ROOM, kv_requests * kv_share
    careful = max(by_requests + reading.unread_demand / HEAD_ROOM, kv_requests * (kv_share + unread_share))
    return Need(mean=mean, urgent=urgent, jumped=jumped, by_requests=by_requests, by_kv=by_kv, careful=careful)


def may_have_jumped(memory: Memory) -> bool:
    """Whether the last reading alone is far above those before: one more would tell whether that is chance."""
    return _jumped(memory.demand, 1) and not _jumped(memory.demand, 2)


def _jumped(readings: Sequence[tuple[float, float, float]], latest: int) -> bool:
    """Whether each of the latest readings is far above the mean of all before them."""
    before, found = [each[1] for each in readings[:-latest]], readings[-latest:]
    if not before or (latest > 1 and found[-1][0] - found[0][0] < APART_S):
        return False
    mean = sum(before) / len(before)
    far = mean + max(JUMP_SHARE * mean, JUMP_DEVIATIONS * math.sqrt(max(mean, 1.0)))
    return min(each[1] for each in found) >= far


def window_s(cold_start_s: float) -> float:
    """How long the load has to be low before anything shrinks."""
    return max(WINDOW_S, WINDOW_COLD_STARTS * cold_start_s)


def remember_need(memory: Memory, careful: float, length_s: float, now_s: float, max_gap_s: float) -> Memory:
    """The memory with this need in its window. After a gap the window begins anew."""
    needs, since_s = memory.needs, memory.since_s
    if since_s is None or memory.read_s is None or now_s - memory.read_s > max_gap_s:
        needs, since_s = (), now_s
    bucket_s = length_s / BUCKETS
    if needs and now_s - needs[-1][0] < bucket_s:
        needs = (*needs[:-1], (needs[-1][0], max(needs[-1][1], careful)))
    else:
        needs = (*needs, (now_s, careful))
    kept = tuple(each for each in needs if each[0] > now_s - length_s - bucket_s)
    return replace(memory, needs=kept, since_s=since_s, read_s=now_s)


def peak(memory: Memory) -> float:
    """The largest need of the window."""
    return max((each for _, each in memory.needs), default=math.inf)


def covered(memory: Memory, length_s: float, now_s: float) -> bool:
    """Whether the window holds evidence from end to end."""
    return memory.since_s is not None and now_s - memory.since_s >= length_s


def _means(memory: Memory, after_s: float) -> tuple[float, float]:
    """Mean requests and mean share of the KV cache since a time."""
    recent = [each for each in memory.demand if each[0] >= after_s]
    count = max(1, len(recent))
    return sum(each[1] for each in recent) / count, sum(each[2] for each in recent) / count


def _fresh(sample: ReplicaSample, max_age_s: float) -> bool:
    if sample.age_s is None or not _young(sample.age_s, max_age_s):
        return False
    if not (sample.kv_total_tokens > 0 and 0 <= sample.running < math.inf):
        return False
    return 0 <= sample.kv_used_tokens <= OVERFULL * sample.kv_total_tokens < math.inf


def _young(age_s: float, max_age_s: float) -> bool:
    return -max_age_s <= age_s <= max_age_s
