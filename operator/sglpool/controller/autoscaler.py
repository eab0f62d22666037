"""The tick: every pool's load is read now and then, the autoscaler decides, and a reconcile is asked for if it matters.

Pools are spread evenly over the interval by a hash of their names; a tick that is not done when the next is due is
skipped, not queued. What a pool needs between ticks lives here, in memory: losing it costs time, never replicas. Not
here: writing anything (`reconcile` does, at its own time), reading (`signals`), deciding (`scaling`).
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from sglpool.api.pool import Pool
from sglpool.controller.loadview import Subject, engines_of, load_of, loads_of, missing_of, signals_of, target_of
from sglpool.controller.metrics import Metrics
from sglpool.controller.rounds import Rounds
from sglpool.controller.store import PoolKey, Store
from sglpool.plan import Observed, ObservedPod
from sglpool.plan.autoscaling import Told
from sglpool.plan.drain import IDLE_READS, ReplicaLoad
from sglpool.scaling import Decision, Memory, decide
from sglpool.signals import Endpoint, Reading, Target
from sglpool.sizing.pools import SizedGPU

INTERVAL_S = 15.0
"""Between two ticks of a pool that is autoscaled."""
DRAIN_INTERVAL_S = 5.0
"""While replicas of it are being emptied: a removal waits for two idle readings."""
FIXED_INTERVAL_S = 60.0
"""Of a pool of fixed size: its load is only shown."""
JUMP_S = 3.0
"""After a reading that says that the load has jumped: the next one tells whether that was chance."""
FASTEST_S = 1.0
MAX_GAP_TICKS = 8
"""Ticks that may fail or be late before the load of the past counts for nothing."""
SHOW_S = 60.0
"""Figures alone are written at most so often."""
MAX_TICKS = 256
"""Pools that are read at a time: a thousand of which nobody answers take two seconds each, and hold up no other."""


class Reader(Protocol):
    """Reads a pool's load, in bounded time and without failing: `signals.Sources`."""

    async def read(self, target: Target) -> Reading:
        """What is known of a pool now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a reconcile takes from the autoscaler.

    Attributes:
        wanted: Replicas by GPU type as decided; None for a pool of fixed size, and while nothing was decided.
        loads: What replicas have to do, by uid of the pod.
        told: What status shows; None while nothing was read.
    """

    wanted: Mapping[str, int] | None
    loads: Mapping[str, ReplicaLoad]
    told: Told | None


@dataclass(slots=True, kw_only=True)
class _Followed:
    """One pool.

    Attributes:
        subject: What is kept of it.
        draining: Whether replicas of it are being emptied.
        memory: What the last decision left.
        decision: The last decision.
        observed: Objects of the last reading.
        engines: Engine pods, and the same as somebody to ask.
        reading: The last reading.
        read_at_s: When that was, monotonic.
        idle_reads: Readings in a row in which a replica was idle, by uid.
        told: What is shown.
        told_at_s: Since when, monotonic.
    """

    subject: Subject
    draining: bool = False
    memory: Memory = field(default_factory=Memory)
    decision: Decision | None = None
    observed: Observed | None = None
    engines: tuple[tuple[ObservedPod, ...], tuple[Endpoint, ...]] = ((), ())
    reading: Reading | None = None
    read_at_s: float = 0.0
    idle_reads: dict[str, int] = field(default_factory=dict)
    told: Told | None = None
    told_at_s: float = 0.0


class Autoscaler:
    """Ticks for every pool that it follows. Use as an async context manager.

    Args:
        store: Views of the children.
        reader: Reads loads.
        enqueue: Asks for a reconcile of a pool.
        metrics: Figures of the operator.
        wall_clock_s: Unix time.
        clock_speed: Seconds of the autoscaler in a second of the wall clock; 1 but in rehearsals.
    """

    def __init__(
        self,
        *,
        store: Store,
        reader: Reader,
        enqueue: Callable[[PoolKey], None],
        metrics: Metrics,
        wall_clock_s: Callable[[], float],
        clock_speed: float = 1.0,
    ) -> None:
        self._store = store
        self._reader = reader
        self._enqueue = enqueue
        self._metrics = metrics
        self._wall_clock_s = wall_clock_s
        self._speed = clock_speed
        self._followed: dict[PoolKey, _Followed] = {}
        self._rounds = Rounds(
            self._timed_tick,
            at_a_time=MAX_TICKS,
            failed="its load could not be looked at",
            skipped=metrics.skipped_ticks.inc,
        )

    async def __aenter__(self) -> "Autoscaler":
        await self._rounds.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._rounds.__aexit__()
        self._followed.clear()

    def follow(self, pool: Pool, sized: tuple[SizedGPU, ...], observed: Observed) -> None:
        """Tick for a pool from now on, with its spec as it is now. A changed spec decides anew, on the last reading."""
        key, subject = (pool.namespace, pool.name), Subject.of(pool, sized)
        draining = any(pod.draining and not pod.terminating for pod in observed.pods)
        followed = self._followed.get(key)
        if followed is None or followed.subject.uid != subject.uid:
            self.forget(key)
            followed = self._followed[key] = _Followed(subject=subject, draining=draining)
            self._rounds.every(key, self._interval_s(followed))
            return
        was, followed.subject, followed.draining = followed.subject, subject, draining
        if subject.policy != was.policy:
            self._decide(followed)
            self._tell(followed, at_once=True)
        self._rounds.every(key, self._interval_s(followed))

    def forget(self, key: PoolKey) -> None:
        """Forget a pool that is gone."""
        self._followed.pop(key, None)
        self._rounds.forget(key)

    def view(self, key: PoolKey) -> View:
        """What a reconcile of a pool takes from here."""
        followed = self._followed.get(key)
        if followed is None or followed.reading is None:
            return View(wanted=None, loads={}, told=None)
        waited_s = self._now_s() - followed.read_at_s
        return View(
            wanted=followed.decision.wanted if followed.decision is not None else None,
            loads=loads_of(followed.reading, followed.idle_reads, waited_s=waited_s),
            told=followed.told,
        )

    async def tick(self, key: PoolKey) -> None:
        """Read a pool, decide, and ask for a reconcile if something is due."""
        followed = self._followed.get(key)
        if followed is None:
            return
        observed = self._store.observed(key, {})
        target = target_of(followed.subject, observed, self._engines_of(followed, observed), now_s=self._wall_clock_s())
        reading = await self._reader.read(target)
        if self._followed.get(key) is not followed:
            return
        before = _due(followed)
        self._take(followed, observed, reading)
        self._decide(followed)
        self._tell(followed)
        self._metrics.observe_signals(key, missing=missing_of(observed, reading), age_s=_oldest_s(reading))
        if _due(followed) != before:
            self._enqueue(key)
        if followed.decision is not None and followed.decision.look_again:
            self._rounds.soon(key, max(JUMP_S / self._speed, FASTEST_S))

    @staticmethod
    def _engines_of(followed: _Followed, observed: Observed) -> tuple[Endpoint, ...]:
        """Whom to ask: pods are views that stay the same while nothing about them changes, so this is rarely new."""
        pods, engines = followed.engines
        if pods != observed.pods:
            engines = engines_of(observed)
            followed.engines = observed.pods, engines
        return engines

    def _take(self, followed: _Followed, observed: Observed, reading: Reading) -> None:
        """Keep a reading; whoever was not read was not idle."""
        followed.observed, followed.reading, followed.read_at_s = observed, reading, self._now_s()
        followed.idle_reads = {
            uid: followed.idle_reads.get(uid, 0) + 1 for uid, one in reading.replicas.items() if one.idle
        }

    def _decide(self, followed: _Followed) -> None:
        policy, observed, reading = followed.subject.policy, followed.observed, followed.reading
        if policy is None or observed is None or reading is None:
            followed.decision = None
            return
        wall_s = self._wall_clock_s()
        signals = signals_of(
            followed.subject,
            observed,
            reading,
            now_s=wall_s,
            waited_s=self._now_s() - followed.read_at_s,
            scaled=self._scaled,
        )
        # Ticks that are a second apart are minutes apart where a second is a minute.
        gap_s = self._scaled(MAX_GAP_TICKS * FASTEST_S)
        policy = replace(policy, max_gap_s=gap_s) if gap_s > policy.max_gap_s else policy
        followed.decision, followed.memory = decide(policy, signals, followed.memory, self._scaled(wall_s))
        self._metrics.decisions.labels(str(followed.decision.reason)).inc()

    def _tell(self, followed: _Followed, *, at_once: bool = False) -> None:
        """Show what is the case now: at once if it means something else, else once a minute at most."""
        if followed.observed is None or followed.reading is None:
            return
        told = Told(
            decision=followed.decision,
            load=load_of(followed.subject, followed.observed, followed.reading),
            problems=followed.reading.problems if followed.decision is not None else (),
        )
        now_s, shown = self._now_s(), followed.told
        stale = shown is None or now_s - followed.told_at_s >= SHOW_S / self._speed
        if at_once or stale or _means(told) != _means(shown):
            followed.told, followed.told_at_s = told, now_s

    def _scaled(self, wall_s: float) -> float:
        return wall_s * self._speed

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _interval_s(self, followed: _Followed) -> float:
        if followed.draining:
            return max(DRAIN_INTERVAL_S / self._speed, FASTEST_S)
        if followed.subject.policy is None:
            return FIXED_INTERVAL_S
        return max(INTERVAL_S / self._speed, FASTEST_S)

    async def _timed_tick(self, key: PoolKey) -> None:
        begin_s = self._now_s()
        await self.tick(key)
        self._metrics.tick.observe(self._now_s() - begin_s)


def _due(followed: _Followed) -> tuple[object, ...]:
    """What a reconcile would act on; if it is as before, none is needed."""
    wanted = dict(followed.decision.wanted) if followed.decision is not None else None
    pods = followed.observed.pods if followed.observed is not None else ()
    reading = followed.reading
    empty = tuple(
        (
            pod.uid,
            reading is not None and pod.uid in reading.replicas,
            followed.idle_reads.get(pod.uid, 0) >= IDLE_READS,
        )
        for pod in pods
        if pod.draining and not pod.terminating
    )
    return wanted, followed.told, empty


def _means(told: Told | None) -> object:
    """What is worth a write of its own: another size, or readings that fail or work again."""
    decision = told.decision if told is not None else None
    return None if decision is None else (dict(decision.wanted), decision.valid)


def _oldest_s(reading: Reading) -> float:
    return max((one.age_s for one in reading.measured.values()), default=0.0)
