"""What the autoscaler is asked, what it knows, what it answers and what it keeps.

Plain frozen values: the controller and the laboratory fill them in, `decide` reads them. Every time is Unix time in
seconds and comes from the caller. Not here: how load is read (`signals`), how anything is decided, and which pod goes
first (`plan`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

DEFAULT_COLD_START_S = 900.0
"""How long a start takes while none was seen: weights of several hundred GB from a node's disk, graphs, warm-up."""
MAX_AGE_S = 45.0
"""An older reading says nothing: three ticks."""
MAX_GAP_S = 120.0
"""Ticks further apart are no history of the load: eight of them."""


class Reason(StrEnum):
    """Why the wanted number is what it is; closed, for status, metrics and whoever asks.

    Growing:
        LOAD_ABOVE_TARGET: more requests in flight than the replicas should carry.
        KV_ABOVE_TARGET: the KV cache is fuller than its target, and that asks for more than the requests do.
        REQUESTS_WAITING: requests wait or were refused: decided on the last 10 s.
    Shrinking:
        LOAD_BELOW_TARGET: less load than the replicas should carry for a whole window.
    Moving between GPU types:
        SPILLED: pods of a preferred type find no node or do not start, so that the next type has to help.
        RETURNING: the preferred type has room again.
    Staying:
        WITHIN_TARGET: the load fits.
        WINDOW_OPEN: the load has been low, but not for long enough, or the last step was just now.
        REPLICAS_STARTING: nothing shrinks while replicas start.
        WOULD_OVERLOAD: one replica less would carry too much.
        GROWTH_LIMITED: more is needed, but as many as may start at a time are starting.
        STARTS_FAIL: more is needed, but replicas do not become ready.
        NO_ROOM: more is needed, but no GPU type finds a node.
        AT_MAXIMUM: more is needed than the bounds allow.
        AT_MINIMUM: less is needed than the bounds allow.
    Bounds:
        BOUNDS: the pool's bounds are other than its size, or than what of it serves or starts.
    Holding, because nothing can be said:
        NO_LOAD_TOTAL: the routers' requests in flight could not be read, or not of all routers, or are too old.
        REPLICAS_UNREADABLE: too few replicas could be read.
        CLOCK_JUMPED: the clock went back or far ahead.
        INVALID_POLICY: a bound or a target makes no sense.
    """

    LOAD_ABOVE_TARGET = "LoadAboveTarget"
    KV_ABOVE_TARGET = "KVAboveTarget"
    REQUESTS_WAITING = "RequestsWaiting"
    LOAD_BELOW_TARGET = "LoadBelowTarget"
    SPILLED = "Spilled"
    RETURNING = "Returning"
    WITHIN_TARGET = "WithinTarget"
    WINDOW_OPEN = "WindowOpen"
    REPLICAS_STARTING = "ReplicasStarting"
    WOULD_OVERLOAD = "WouldOverload"
    GROWTH_LIMITED = "GrowthLimited"
    STARTS_FAIL = "StartsFail"
    NO_ROOM = "NoRoom"
    AT_MAXIMUM = "AtMaximum"
    AT_MINIMUM = "AtMinimum"
    BOUNDS = "Bounds"
    NO_LOAD_TOTAL = "NoLoadTotal"
    REPLICAS_UNREADABLE = "ReplicasUnreadable"
    CLOCK_JUMPED = "ClockJumped"
    INVALID_POLICY = "InvalidPolicy"


@dataclass(frozen=True, slots=True, kw_only=True)
class TypePolicy:
    """What the user wants of one GPU type.

    Attributes:
        type: the GPU type.
        target_running_requests: requests that one replica should carry, the user's or sizing's.
        min_replicas: fewest replicas of this type.
        max_replicas: most replicas of this type, None without a bound.
        max_running_requests: what the engine runs at most, None if unknown. A target above it cannot be reached.
        usable: False when no replica of this type may be started (it does not fit, or is unknown): then it never grows.
    """

    type: str
    target_running_requests: int
    min_replicas: int = 0
    max_replicas: int | None = None
    max_running_requests: int | None = None
    usable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the user wants of a pool.

    Attributes:
        types: GPU types in order of preference.
        min_replicas: fewest replicas over all types.
        max_replicas: most replicas over all types.
        target_kv_utilization: share of the KV cache that may be in use, 0 to 1.
        startup_timeout_s: no start takes longer: a bound for what is learnt, not an estimate.
        cold_start_s: how long a start takes while none was seen.
        max_age_s: older readings are no readings.
        max_gap_s: after a longer time without a reading, or a larger step of the clock, the window begins anew.
    """

    types: tuple[TypePolicy, ...]
    min_replicas: int
    max_replicas: int
    target_kv_utilization: float = 0.8
    startup_timeout_s: float = math.inf
    cold_start_s: float = DEFAULT_COLD_START_S
    max_age_s: float = MAX_AGE_S
    max_gap_s: float = MAX_GAP_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSample:
    """One replica that serves, read or not. Every pod that serves has one, and no other pod: draining ones too.

    Attributes:
        uid: the pod's uid.
        gpu_type: its GPU type.
        running: requests that it runs or keeps waiting, 0 if unknown (then `age_s` is None).
        kv_used_tokens: tokens that running requests hold.
        kv_total_tokens: tokens that fit; 0 if unknown.
        age_s: how old the reading is, None without one.
    """

    uid: str
    gpu_type: str
    running: float = 0.0
    kv_used_tokens: float = 0.0
    kv_total_tokens: float = 0.0
    age_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingReplica:
    """A pod of a replica that serves nobody and is not terminating: starting, broken, without a node, under a gate.

    Attributes:
        uid: the pod's uid.
        ordinal: its number in the StatefulSet.
        since_s: since when it is as it is: its start, or when it became ready or stopped being ready.
        unschedulable_since_s: since when the scheduler finds no node for it, None if it has one or was not looked at.
        ready: whether its start is over, and it only gets no traffic yet: nobody has polled it, or its revision has
            not passed its gate.
    """

    uid: str
    ordinal: int
    since_s: float
    unschedulable_since_s: float | None = None
    ready: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeState:
    """The replicas of one GPU type.

    Attributes:
        type: the GPU type.
        replicas: `spec.replicas` of its StatefulSet, less those that drain for a smaller size; 0 without one.
        ready: pods that serve, draining ones included: those of a scale-down are above what was wanted last, and
            those of a roll-out come back.
        starting: pods that serve nobody yet, and are not terminating.
    """

    type: str
    replicas: int
    ready: int
    starting: tuple[StartingReplica, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """Load and state of a pool at one moment.

    Attributes:
        in_flight: requests in flight, summed over the routers; None if it could not be read. Unused without a router.
        has_router: whether the pool has routers. Without them, requests in flight are those of the replicas' samples.
        refused_conversations: distinct conversations that the routers refused in the last minute.
        queued: requests that wait in the engines.
        routers_read: routers that `in_flight` is the sum of.
        routers_known: routers that carry traffic.
        age_s: age of the oldest reading in `in_flight`.
        replicas: one sample for each ready pod.
        types: one state for each GPU type of the spec; others are ignored.
    """

    in_flight: float | None
    types: tuple[TypeState, ...]
    replicas: tuple[ReplicaSample, ...] = ()
    has_router: bool = True
    refused_conversations: int = 0
    queued: int = 0
    routers_read: int = 1
    routers_known: int = 1
    age_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the pool should have.

    Attributes:
        wanted: replicas by GPU type, every type of the policy, in order of preference.
        reason: why, as one word.
        message: why, with figures, for people.
        inputs: the figures that decided, by name.
        valid: whether the load could be read. If not, `wanted` is what was wanted before, within the bounds.
        look_again: whether the load seems to have jumped beyond what there is. One more reading, in seconds rather than
            at the next tick, would tell.
    """

    wanted: Mapping[str, int]
    reason: Reason
    message: str
    inputs: Mapping[str, float]
    valid: bool
    look_again: bool = False

    @property
    def total(self) -> int:
        """Replicas over all GPU types."""
        return sum(self.wanted.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What one decision leaves to the next, per pool. Losing it costs nothing but time: nothing shrinks for a window.

    Attributes:
        last_s: time of the last decision, None before the first.
        wanted: the last decision's.
        demand: (time, requests, share of the KV cache) of the last minute.
        since_s: since when load was readable, gaps aside: the window of evidence cannot begin earlier.
        read_s: when load was last readable.
        needs: (time, largest need) of the window, one for a thirtieth of it.
        growth: (beginning, replicas then, replicas added since) of the period that growth is limited in.
        last_shrink_s: the last step down.
        last_return_s: the last try to go back to a preferred type.
        spilled: replicas by GPU type that stand in for pods of a preferred type.
        starting: since when, by uid, of replicas whose start is being timed.
        known: uids that have been ready, or that were there before this memory: their starts are not timed.
        starts: how long the last starts took, by GPU type.
        podless_since_s: since when a StatefulSet has fewer pods than replicas, by GPU type.
    """

    last_s: float | None = None
    wanted: Mapping[str, int] = field(default_factory=dict)
    demand: tuple[tuple[float, float, float], ...] = ()
    since_s: float | None = None
    read_s: float | None = None
    needs: tuple[tuple[float, float], ...] = ()
    growth: tuple[float, int, int] | None = None
    last_shrink_s: float | None = None
    last_return_s: float | None = None
    spilled: Mapping[str, int] = field(default_factory=dict)
    starting: Mapping[str, float] = field(default_factory=dict)
    known: frozenset[str] = frozenset()
    starts: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    podless_since_s: Mapping[str, float] = field(default_factory=dict)
