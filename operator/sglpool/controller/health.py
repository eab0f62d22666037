"""The watch over engines that pass their probes and still do badly: once a minute every pool's replicas are asked.

A finding asks for a reconcile, which empties and replaces the replica; news of how much KV cache they have asks for one
too, which status shows. Nothing else leaves this module. What is known lives in memory: losing it costs minutes of
watching. What is being emptied for a finding stands on the pod, and is taken up from there. Not here: judging
(`plan.health`), asking (`signals`), writing (`reconcile`).
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sglpool.api.names import ENGINE_PORT
from sglpool.api.pool import Pool
from sglpool.controller.metrics import Metrics
from sglpool.controller.rounds import Rounds
from sglpool.controller.store import PoolKey, Store
from sglpool.plan import Observed, ObservedPod
from sglpool.plan.health import Finding, Health, HealthMemory, judge, kv_tokens_of, recall
from sglpool.plan.verdicts import Sample
from sglpool.signals import Endpoint
from sglpool.signals.health import read_samples
from sglpool.signals.http import Web

INTERVAL_S = 60.0
"""Between two looks at a pool."""
MAX_SPEED = 20.0
"""Faster, two minutes without a token would be a few seconds in which a machine was busy."""
ANSWER_LIMIT_S = 5.0
"""For one answer of an engine; milliseconds when it is well."""
MAX_LOOKS = 16
"""Pools that are looked at at a time."""


class Reader(Protocol):
    """Asks engines, in bounded time and without failing."""

    async def read(
        self, engines: Sequence[Endpoint], clock_s: Callable[[], float], *, drafts: bool
    ) -> dict[str, Sample]:
        """Samples of those that answered, by uid."""


class EngineReader:
    """Asks engines by pod IP. Use as an async context manager."""

    def __init__(self) -> None:
        self._web = Web(limit_s=ANSWER_LIMIT_S)

    async def __aenter__(self) -> "EngineReader":
        await self._web.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._web.__aexit__()

    async def read(
        self, engines: Sequence[Endpoint], clock_s: Callable[[], float], *, drafts: bool
    ) -> dict[str, Sample]:
        """Samples of those that answered, by uid."""
        return await read_samples(self._web, engines, ENGINE_PORT, clock_s, drafts=drafts)


@dataclass(slots=True, kw_only=True)
class _Watched:
    """One pool.

    Attributes:
        uid: Its uid: a new pool of an old name starts anew.
        speculative: Whether its engines draft.
        memory: What the last look left.
        health: What it found.
        told: uid of the pod and ailment of findings that an Event has told.
    """

    uid: str
    speculative: bool
    memory: HealthMemory = field(default_factory=HealthMemory)
    health: Health = field(default_factory=Health)
    told: frozenset[tuple[str, str]] = frozenset()


class HealthWatch:
    """Looks at the replicas of every pool that it follows. Use as an async context manager.

    Args:
        store: Views of the children.
        reader: Asks engines.
        enqueue: Asks for a reconcile of a pool.
        metrics: Figures of the operator.
        clock_speed: Seconds of the watch in a second of the wall clock; 1 but in rehearsals.
    """

    def __init__(
        self,
        *,
        store: Store,
        reader: Reader,
        enqueue: Callable[[PoolKey], None],
        metrics: Metrics,
        clock_speed: float = 1.0,
    ) -> None:
        self._store = store
        self._reader = reader
        self._enqueue = enqueue
        self._metrics = metrics
        self._speed = min(clock_speed, MAX_SPEED)
        self._watched: dict[PoolKey, _Watched] = {}
        self._rounds = Rounds(
            self.look, at_a_time=MAX_LOOKS, failed="the health of its replicas could not be looked at"
        )

    async def __aenter__(self) -> "HealthWatch":
        await self._rounds.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._rounds.__aexit__()
        self._watched.clear()

    def follow(self, pool: Pool) -> None:
        """Look at a pool from now on, with its spec as it is now."""
        key, speculative = (pool.namespace, pool.name), pool.spec.speculative is not None
        watched = self._watched.get(key)
        if watched is not None and watched.uid == pool.uid:
            watched.speculative = speculative
            return
        self.forget(key)
        watched = self._watched[key] = _Watched(uid=pool.uid, speculative=speculative)
        watched.health, watched.memory = recall(self._own_pods(key, watched), self._now_s())
        watched.told = frozenset(_places(watched.health))
        self._rounds.every(key, INTERVAL_S / self._speed)

    def forget(self, key: PoolKey) -> None:
        """Forget a pool that is gone."""
        self._watched.pop(key, None)
        self._rounds.forget(key)

    def view(self, key: PoolKey) -> Health:
        """What is wrong with a pool's replicas, as far as is known."""
        watched = self._watched.get(key)
        return watched.health if watched is not None else Health()

    def kv_tokens(self, key: PoolKey) -> dict[str, int]:
        """KV tokens that a pool's engines said they have, by uid of the pod."""
        watched = self._watched.get(key)
        return kv_tokens_of(watched.memory) if watched is not None else {}

    def news(self, key: PoolKey) -> list[Finding]:
        """What is wrong and was not told before; whoever asks tells it."""
        watched = self._watched.get(key)
        if watched is None:
            return []
        findings = _places(watched.health)
        untold = [one for place, one in findings.items() if place not in watched.told]
        watched.told = frozenset(findings)
        for one in untold:
            self._metrics.verdicts.labels(str(one.verdict.ailment)).inc()
        return untold

    async def look(self, key: PoolKey) -> None:
        """Ask a pool's engines, judge, and ask for a reconcile if that says something else than before."""
        watched = self._watched.get(key)
        if watched is None:
            return
        engines = [_endpoint(pod) for pod in self._own_pods(key, watched) if pod.ready]
        samples = await self._reader.read(engines, self._now_s, drafts=watched.speculative)
        if self._watched.get(key) is not watched:
            return
        before = watched.health, kv_tokens_of(watched.memory)
        watched.health, watched.memory = judge(
            self._own_pods(key, watched), samples, watched.memory, self._now_s(), speculative=watched.speculative
        )
        if (watched.health, kv_tokens_of(watched.memory)) != before:
            self._enqueue(key)

    def _own_pods(self, key: PoolKey, watched: _Watched) -> list[ObservedPod]:
        observed: Observed = self._store.observed(key, {})
        uids = {s.uid for s in observed.statefulsets if s.owner_uid == watched.uid}
        return [pod for pod in observed.pods if pod.owner_uid in uids]

    def _now_s(self) -> float:
        """The time that engines live in. It is never set back."""
        return asyncio.get_running_loop().time() * self._speed


def _places(health: Health) -> dict[tuple[str, str], Finding]:
    """Findings by what tells one from another."""
    return {(one.uid, str(one.verdict.ailment)): one for one in health.findings}


def _endpoint(pod: ObservedPod) -> Endpoint:
    return Endpoint(name=pod.name, uid=pod.uid, address=pod.address)
