"""Reads a pool's load from where its spec says it is, in bounded time, and never fails.

With a router, its counts are the load, and its polls the engines' figures; without one the engines are asked. A
Prometheus, where the pool names one, stands in for the engines' figures in decisions about size; whether a replica is
empty is never read from it, since its gauges may be half a minute old. Not here: what follows.
"""

import asyncio
from dataclasses import replace

from sglpool.signals.engines import read_engines
from sglpool.signals.fields import Unreadable
from sglpool.signals.http import Web
from sglpool.signals.prometheus import PrometheusReader, PrometheusReading
from sglpool.signals.reading import PrometheusAt, Reading, Target
from sglpool.signals.routers import read_routers
from sglpool.signals.tokens import Tokens

LIMIT_S = 5.0
"""Longest time for a pool, its turn included: a tick is never held up by somebody who does not answer."""


class Sources:
    """Reads pools. Use as an async context manager.

    Args:
        tokens: Reads bearer tokens.
        web: Asks pods.
        prometheus: Asks Prometheus.
        limit_s: Longest time for a pool.
    """

    def __init__(
        self,
        tokens: Tokens,
        *,
        web: Web | None = None,
        prometheus: PrometheusReader | None = None,
        limit_s: float = LIMIT_S,
    ) -> None:
        self._tokens = tokens
        self._web = web or Web()
        self._prometheus = prometheus or PrometheusReader()
        self._limit_s = limit_s

    async def __aenter__(self) -> "Sources":
        await self._web.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._web.__aexit__()
        self._prometheus.close()

    async def read(self, target: Target) -> Reading:
        """What is known of a pool now; what is missing is said in `problems`."""
        try:
            async with asyncio.timeout(self._limit_s):
                return await self._read(target)
        except TimeoutError:
            return Reading(
                routers_known=sum(router.required for router in target.routers),
                problems=(f"Nobody could be asked within {self._limit_s:g} s: too many pods do not answer.",),
            )

    async def _read(self, target: Target) -> Reading:
        pods = read_routers(self._web, target) if target.routed else read_engines(self._web, target)
        if target.prometheus is None:
            reading = await pods
            return replace(reading, measured=reading.replicas)
        reading, measured = await asyncio.gather(pods, self._measure(target.prometheus, target))
        return combine(reading, measured, routed=target.routed)

    async def _measure(self, prometheus: PrometheusAt, target: Target) -> PrometheusReading:
        if prometheus.secret is not None:
            name, key = prometheus.secret
            try:
                token = await self._tokens.read(target.namespace, name, key)
            except Unreadable as problem:
                return PrometheusReading(problems=(f"Prometheus {prometheus.url} {problem}.",))
            prometheus = replace(prometheus, token=token)
        return await self._prometheus.read(prometheus, target)


def combine(reading: Reading, measured: PrometheusReading, *, routed: bool) -> Reading:
    """A pool whose engines' figures come from a Prometheus; a router's own counts of requests stay what they are."""
    replicas = {
        uid: replace(one, in_flight=reading.replicas[uid].in_flight) if routed and uid in reading.replicas else one
        for uid, one in measured.replicas.items()
    }
    reading = replace(reading, measured=replicas, queued=sum(one.queued for one in replicas.values()))
    if routed:
        return replace(reading, problems=(*reading.problems, *measured.problems))
    # Prometheus was named because it is there to be asked; that a pod could not be is then no news.
    in_flight = float(sum(one.in_flight for one in replicas.values())) if replicas else None
    return replace(reading, in_flight=in_flight, problems=measured.problems)
