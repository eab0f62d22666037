"""Pools for tests of the autoscaler: signals from a few numbers, and a pool that lives from tick to tick."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sglpool.scaling import (
    Decision,
    Memory,
    Policy,
    ReplicaSample,
    Signals,
    StartingReplica,
    TypePolicy,
    TypeState,
    decide,
)

TICK_S = 15.0
KV_TOKENS = 500_000.0
START_S = 1_800_000_000.0
WINDOW_S = 900.0


def policy(*types: TypePolicy, least: int = 1, most: int = 100, **more: float) -> Policy:
    """A policy, by default of one type whose replicas should carry 10 requests."""
    return Policy(
        types=types or (TypePolicy(type="B200", target_running_requests=10),),
        min_replicas=least,
        max_replicas=most,
        startup_timeout_s=3600.0,
        **{"cold_start_s": 600.0, **more},
    )


def two_types(**b200: int | None) -> tuple[TypePolicy, TypePolicy]:
    """B200 before B300, 10 and 20 requests."""
    return (
        replace(TypePolicy(type="B200", target_running_requests=10), **b200),
        TypePolicy(type="B300", target_running_requests=20),
    )


@dataclass
class Replica:
    """One replica of the pool."""

    uid: str
    since_s: float
    ready_s: float | None
    unschedulable_since_s: float | None = None


@dataclass
class Pool:
    """A pool whose replicas start, fail and leave as a test wants, ticked by the real decision.

    Attributes:
        policy: what the user wants.
        load: requests in flight, None while unreadable.
        kv_share: share of the KV cache in use on every replica.
        cold_start_s: how long a start takes.
        room: nodes by GPU type, unbounded where absent.
        broken: GPU types whose replicas never become ready.
        unread: how many ready replicas cannot be read.
        silent_s: how long ready replicas get no traffic: they are under a gate, or nobody has polled them.
    """

    policy: Policy
    load: float | None = 0.0
    kv_share: float = 0.0
    cold_start_s: float = 600.0
    queued: int = 0
    refused: int = 0
    room: Mapping[str, int] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    unread: int = 0
    silent_s: float = 0.0
    has_router: bool = True
    now_s: float = START_S
    memory: Memory = field(default_factory=Memory)
    replicas: dict[str, list[Replica]] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    made: int = 0

    def fill(self, **counts: int) -> "Pool":
        """Ready replicas by GPU type."""
        for name, count in counts.items():
            self.replicas[name] = [self._replica(-1e6, -math.inf) for _ in range(count)]
        return self

    def _replica(self, since_s: float, ready_s: float | None) -> Replica:
        self.made += 1
        return Replica(uid=f"p{self.made}", since_s=since_s, ready_s=ready_s)

    def signals(self) -> Signals:
        """The pool as it is."""
        samples: list[ReplicaSample] = []
        for name, replicas in self.replicas.items():
            ready = [one for one in replicas if self._serves(one)]
            samples += [ReplicaSample(uid=one.uid, gpu_type=name) for one in ready]
        each = (self.load or 0.0) / max(1, len(samples))
        read = [
            replace(
                sample,
                running=each,
                kv_used_tokens=self.kv_share * KV_TOKENS,
                kv_total_tokens=KV_TOKENS,
                age_s=1.0,
            )
            for sample in samples[self.unread :]
        ]
        return Signals(
            in_flight=self.load if self.has_router else None,
            types=tuple(self._state(one.type) for one in self.policy.types),
            replicas=(*samples[: self.unread], *read),
            has_router=self.has_router,
            queued=self.queued,
            refused_conversations=self.refused,
            age_s=1.0,
        )

    def _ready(self, one: Replica) -> bool:
        return one.ready_s is not None and one.ready_s <= self.now_s

    def _serves(self, one: Replica) -> bool:
        if one.ready_s == -math.inf:
            return True
        return one.ready_s is not None and one.ready_s + self.silent_s <= self.now_s

    def _state(self, name: str) -> TypeState:
        replicas = self.replicas.get(name, [])
        starting = tuple(
            StartingReplica(
                uid=one.uid,
                ordinal=ordinal,
                since_s=one.ready_s if self._ready(one) and one.ready_s is not None else one.since_s,
                unschedulable_since_s=one.unschedulable_since_s,
                ready=self._ready(one),
            )
            for ordinal, one in enumerate(replicas)
            if not self._serves(one)
        )
        return TypeState(type=name, replicas=len(replicas), ready=len(replicas) - len(starting), starting=starting)

    def tick(self, ticks: int = 1) -> Decision:
        """Decide and carry it out, several times, 15 s apart; the last decision."""
        for _ in range(ticks):
            decision, self.memory = decide(self.policy, self.signals(), self.memory, self.now_s)
            self.decisions.append(decision)
            self._carry_out(decision)
            self.now_s += TICK_S
        return self.decisions[-1]

    def run(self, seconds: float) -> Decision:
        """Tick for a time."""
        return self.tick(max(1, int(seconds / TICK_S)))

    def _carry_out(self, decision: Decision) -> None:
        for name, wanted in decision.wanted.items():
            replicas = self.replicas.setdefault(name, [])
            while len(replicas) < wanted:
                replicas.append(self._replica(self.now_s, None))
            del replicas[wanted:]
            for ordinal, one in enumerate(replicas):
                self._place(name, ordinal, one)

    def _place(self, name: str, ordinal: int, one: Replica) -> None:
        if self._ready(one):
            return
        if ordinal >= self.room.get(name, 10**6):
            one.unschedulable_since_s = one.unschedulable_since_s or self.now_s
            one.ready_s = None
            return
        if one.unschedulable_since_s is not None:
            one.unschedulable_since_s, one.since_s = None, self.now_s
        if name not in self.broken and one.ready_s is None:
            one.ready_s = one.since_s + self.cold_start_s

    @property
    def wanted(self) -> dict[str, int]:
        """What the last decision wants."""
        return dict(self.decisions[-1].wanted)


def settled(load: float, replicas: int, **more: object) -> Pool:
    """A pool that has carried a load for longer than a window."""
    pool = Pool(policy(), load=load, **more).fill(B200=replicas)  # type: ignore[arg-type]
    pool.run(WINDOW_S + 2 * TICK_S)
    return pool
