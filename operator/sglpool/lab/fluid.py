"""A fluid model of a fleet: load as a number that changes, replicas that take time to start and to leave.

It judges autoscalers by days, in seconds: how long the load was above what the serving replicas should carry, and what
that cost. There are no requests, no routing and no feedback from waiting clients in it: rankings carry over to real
pools, absolute figures less so. Not here: the autoscalers (`fluid_scalers`).
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

DAY_S = 86_400.0
STEP_S = 5.0
ABOVE, FAR_ABOVE = 1.2, 1.5
"""Requests on a serving replica, as a share of its target, beyond which a pool is overloaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """The load of a day.

    Attributes:
        low, high: concurrent requests at night and at noon.
        noise: standard deviation of the relative noise.
        noise_s: how long a deviation lasts.
        bursts: bursts in the day, at random times.
        burst: how many requests a burst adds: the smallest and the largest.
        burst_ramp_s: how long a burst takes to come and to go.
        burst_s: how long it lasts between that: the shortest and the longest.
        seed: what makes the rest.
    """

    low: float = 64.0
    high: float = 240.0
    noise: float = 0.06
    noise_s: float = 60.0
    bursts: int = 6
    burst: tuple[float, float] = (20.0, 100.0)
    burst_ramp_s: float = 180.0
    burst_s: tuple[float, float] = (300.0, 900.0)
    seed: int = 1

    def load(self) -> list[float]:
        """Concurrent requests at every step of the day."""
        rng = random.Random(self.seed)
        bursts = [
            (rng.uniform(0, DAY_S), rng.uniform(*self.burst_s), rng.uniform(*self.burst)) for _ in range(self.bursts)
        ]
        keep = math.exp(-STEP_S / self.noise_s)
        kick = self.noise * math.sqrt(1 - keep * keep)
        deviation, found = rng.gauss(0, self.noise), []
        for step in range(int(DAY_S / STEP_S)):
            now_s = step * STEP_S
            middle, swing = (self.high + self.low) / 2, (self.high - self.low) / 2
            base = middle - swing * math.cos(2 * math.pi * now_s / DAY_S)
            extra = sum(size * self._shape(now_s - at_s, lasts_s) for at_s, lasts_s, size in bursts)
            deviation = deviation * keep + kick * rng.gauss(0, 1)
            found.append(max(0.0, (base + extra) * (1 + deviation)))
        return found

    def _shape(self, since_s: float, lasts_s: float) -> float:
        """A trapezium: up, level, down."""
        ramp_s = self.burst_ramp_s
        return max(0.0, min(1.0, since_s / ramp_s, (2 * ramp_s + lasts_s - since_s) / ramp_s))


@dataclass(slots=True)
class Pod:
    """One replica.

    Attributes:
        uid: which one.
        since_s: when it began to start.
        ready_s: when it is ready.
        leaves_s: when its drain ends, None while it does not drain.
    """

    uid: str
    since_s: float
    ready_s: float
    leaves_s: float | None = None


@dataclass(slots=True)
class Fleet:
    """The replicas of a pool, one GPU type; the highest leave first, after a drain that load coming back cancels.

    Attributes:
        target: requests that one replica should carry.
        cold_start_s: how long a start takes, on average; it varies by a tenth.
        drain_s: how long a replica drains before it is gone. It is paid for until then.
        pods: the replicas, by ordinal.
    """

    target: float
    cold_start_s: float
    drain_s: float
    rng: random.Random
    pods: list[Pod] = field(default_factory=list)
    made: int = 0

    def fill(self, replicas: int) -> None:
        """Let there be replicas that have been ready for ever."""
        self.pods = [self._pod(-DAY_S, -DAY_S) for _ in range(replicas)]

    def resize(self, wanted: int, now_s: float) -> None:
        """Carry out what is wanted."""
        while len(self.pods) < wanted:
            self.pods.append(self._pod(now_s, now_s + self.cold_start_s * self.rng.uniform(0.9, 1.1)))
        for ordinal, pod in enumerate(self.pods):
            if ordinal < wanted:
                pod.leaves_s = None
            elif pod.leaves_s is None:
                # What never served has nothing to drain.
                pod.leaves_s = now_s + (self.drain_s if pod.ready_s <= now_s else 0.0)
        while self.pods and self.pods[-1].leaves_s is not None and self.pods[-1].leaves_s <= now_s:
            self.pods.pop()

    def end_drain(self, uid: str, now_s: float) -> None:
        """Let a replica that drains be done with it: it goes once those above it have gone."""
        for pod in self.pods:
            if pod.uid == uid and pod.leaves_s is not None:
                pod.leaves_s = min(pod.leaves_s, now_s)

    @property
    def staying(self) -> int:
        """Replicas that do not drain."""
        return sum(pod.leaves_s is None for pod in self.pods)

    def serving(self, now_s: float) -> int:
        """Replicas that are ready and stay."""
        return sum(pod.ready_s <= now_s and pod.leaves_s is None for pod in self.pods)

    def _pod(self, since_s: float, ready_s: float) -> Pod:
        self.made += 1
        return Pod(uid=f"p{self.made}", since_s=since_s, ready_s=ready_s)


class Scaler(Protocol):
    """What decides the size."""

    every_s: float

    def want(self, fleet: Fleet, load: float | None, now_s: float) -> int:
        """Replicas that there should be. `load` is None while it cannot be read."""
        ...


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a day was like.

    Attributes:
        above: share of the time with more than `ABOVE` of the target on a serving replica.
        far_above: the same with `FAR_ABOVE`.
        over_ideal: replica-hours beyond those of replicas that come and go at once, as a share of these.
        scale_ups: decisions to grow.
        scale_downs: decisions to shrink.
        removed: replicas that were let go.
        blind_scale_downs: decisions to shrink while the load could not be read.
        sizes: wanted replicas at every step.
        carried: requests on a serving replica, as a share of the target, at every step.
    """

    above: float = 0.0
    far_above: float = 0.0
    over_ideal: float = 0.0
    scale_ups: int = 0
    scale_downs: int = 0
    removed: int = 0
    blind_scale_downs: int = 0
    sizes: list[int] = field(default_factory=list)
    carried: list[float] = field(default_factory=list)


def simulate(
    load: Sequence[float],
    fleet: Fleet,
    scaler: Scaler,
    *,
    begin_s: float = 0.0,
    readable: Callable[[float], bool] = lambda _now_s: True,
) -> Outcome:
    """Let a scaler run a fleet under a load, one value of it per step.

    Args:
        load: concurrent requests at every step.
        fleet: the replicas, filled.
        scaler: what decides.
        begin_s: time of the first value: a fleet and a scaler that have come to there can be taken on from it.
        readable: whether the load can be read at a time.
    """
    found = Outcome()
    wanted, next_s, paid, ideal = fleet.staying, begin_s, 0.0, 0.0
    for step, demand in enumerate(load):
        now_s = begin_s + step * STEP_S
        if now_s >= next_s:
            next_s = now_s + scaler.every_s
            seen = demand if readable(now_s) else None
            before, wanted = wanted, scaler.want(fleet, seen, now_s)
            _count(found, before, wanted, seen is None)
        fleet.resize(wanted, now_s)
        carried = demand / max(1e-9, fleet.serving(now_s) * fleet.target)
        found.above += carried > ABOVE
        found.far_above += carried > FAR_ABOVE
        paid += len(fleet.pods)
        ideal += demand / fleet.target
        found.sizes.append(wanted)
        found.carried.append(carried)
    found.above /= len(load)
    found.far_above /= len(load)
    found.over_ideal = paid / ideal - 1
    return found


def _count(found: Outcome, before: int, wanted: int, blind: bool) -> None:
    found.scale_ups += wanted > before
    found.scale_downs += wanted < before
    found.removed += max(0, before - wanted)
    found.blind_scale_downs += blind and wanted < before
