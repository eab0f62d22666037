"""The autoscalers of the fluid model: the real decision, and the formulas of two others.

The others get the same exact load that ours gets, and replicas that drain as ours do; only the rule differs. Not here:
the model (`fluid`).
"""

import math
from collections import deque
from dataclasses import dataclass, field

from sglpool.lab.fluid import Fleet
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

GPU = "B200"
MIN_REPLICAS, MAX_REPLICAS = 1, 1000
KV_SHARE_AT_TARGET = 0.85
"""KV cache in use on a replica that carries its target: sizing makes it 90% of the cache and rounds down."""
KV_TOKENS = 500_000.0


def policy_of(fleet: Fleet, *, cold_start_s: float = 600.0) -> Policy:
    """The policy of a pool with one GPU type and bounds that do not bind."""
    one = TypePolicy(type=GPU, target_running_requests=round(fleet.target))
    return Policy(
        types=(one,),
        min_replicas=MIN_REPLICAS,
        max_replicas=MAX_REPLICAS,
        startup_timeout_s=3600.0,
        cold_start_s=cold_start_s,
    )


def signals_of(fleet: Fleet, load: float | None, wanted: int, now_s: float) -> Signals:
    """What the operator would read: exact requests in flight, KV in proportion, requests waiting once it is full."""
    ready = [pod for pod in fleet.pods if pod.ready_s <= now_s]
    starting = tuple(
        StartingReplica(uid=pod.uid, ordinal=ordinal, since_s=pod.since_s)
        for ordinal, pod in enumerate(fleet.pods)
        if pod.ready_s > now_s
    )
    held = 0.0 if load is None else load
    share = KV_SHARE_AT_TARGET * held / max(1e-9, len(ready) * fleet.target)
    age_s = None if load is None else 1.0
    samples = tuple(
        ReplicaSample(
            uid=pod.uid,
            gpu_type=GPU,
            running=held / len(ready),
            kv_used_tokens=min(1.0, share) * KV_TOKENS,
            kv_total_tokens=KV_TOKENS,
            age_s=age_s,
        )
        for pod in ready
    )
    waiting = held - len(ready) * fleet.target / KV_SHARE_AT_TARGET
    state = TypeState(type=GPU, replicas=max(wanted, len(fleet.pods)), ready=len(ready), starting=starting)
    return Signals(in_flight=load, types=(state,), replicas=samples, queued=max(0, math.ceil(waiting)), age_s=1.0)


@dataclass(slots=True)
class Ours:
    """The decision that the operator takes."""

    policy: Policy
    every_s: float = 15.0
    memory: Memory = field(default_factory=Memory)
    last: Decision | None = None

    def want(self, fleet: Fleet, load: float | None, now_s: float) -> int:
        """One tick."""
        signals = signals_of(fleet, load, self.last.total if self.last else 0, now_s)
        self.last, self.memory = decide(self.policy, signals, self.memory, now_s)
        return self.last.total


@dataclass(slots=True)
class HorizontalPodAutoscaler:
    """The formula of Kubernetes' HPA with an average value: desired = ceil(load / (target * utilisation)).

    10% tolerance, at most max(4, 100%) more in 15 s, and the largest wish of the stabilisation window before it
    shrinks. Without a reading it does nothing, unless `blind` makes it take none for zero.
    """

    utilization: float = 0.9
    stabilization_s: float = 300.0
    every_s: float = 15.0
    blind: bool = False
    wishes: deque[tuple[float, int]] = field(default_factory=deque)
    now: int = 0

    def want(self, fleet: Fleet, load: float | None, now_s: float) -> int:
        """One tick."""
        self.now = self.now or len(fleet.pods)
        if load is None:
            if not self.blind:
                return self.now
            load = 0.0
        each = fleet.target * self.utilization
        ratio = load / (each * self.now)
        wish = self.now if abs(ratio - 1) <= 0.1 else max(MIN_REPLICAS, math.ceil(load / each))
        self.wishes.append((now_s, wish))
        while self.wishes[0][0] < now_s - self.stabilization_s:
            self.wishes.popleft()
        if wish < self.now:
            wish = min(self.now, max(each_wish for _, each_wish in self.wishes))
        self.now = min(wish, self.now + max(4, self.now))
        return self.now


@dataclass(slots=True)
class KnativePodAutoscaler:
    """The formula of Knative's KPA: the mean of a 60 s window, or of 6 s in panic, and no tolerance.

    Panic begins when the short window wants twice of what is ready, lasts for 60 s after, and shrinks nothing.
    """

    utilization: float = 0.9
    stable_s: float = 60.0
    panic_s: float = 6.0
    every_s: float = 5.0
    loads: deque[tuple[float, float]] = field(default_factory=deque)
    panicked_s: float = -math.inf
    now: int = 0

    def want(self, fleet: Fleet, load: float | None, now_s: float) -> int:
        """One tick."""
        self.now = self.now or len(fleet.pods)
        if load is None:
            return self.now
        self.loads.append((now_s, load))
        while self.loads[0][0] <= now_s - self.stable_s:
            self.loads.popleft()
        each = fleet.target * self.utilization
        stable = self._wish([value for _, value in self.loads], each)
        urgent = self._wish([value for at_s, value in self.loads if at_s > now_s - self.panic_s], each)
        ready = max(1, fleet.serving(now_s))
        if urgent >= 2 * ready:
            self.panicked_s = now_s
        panic = now_s - self.panicked_s < self.stable_s
        wish = max(self.now, urgent) if panic else stable
        self.now = max(MIN_REPLICAS, wish, math.floor(ready / 2))
        return self.now

    @staticmethod
    def _wish(values: list[float], each: float) -> int:
        return math.ceil(sum(values) / len(values) / each)
