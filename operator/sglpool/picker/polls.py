"""What each engine says about itself, once a second: `/v1/loads`.

One loop per replica, so that a slow one delays nobody. Not here: what a replica's load is (`routing.load`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from sglpool.picker.fleet import Fleet, Member
from sglpool.picker.ledger import Ledger
from sglpool.picker.metrics import Metrics
from sglpool.routing.estimate import note_prefill

PERIOD_S = 1.0
LIMIT_S = 3.0
MAX_ANSWER_BYTES = 256 * 1024
RATE_MIN_TOKENS = 20_000
"""Prefilled tokens after which an engine's own rate is believed: the first prefills compile."""


class BadAnswer(Exception):
    """An answer to a poll that is not what SGLang gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """One answer, summed over the engine's data-parallel ranks."""

    ranks: int
    running: int
    waiting: int
    waiting_uncached_tokens: int
    used_tokens: int
    total_tokens: int
    prefill_tokens: int
    prefill_busy_us: int

    @property
    def prefilling(self) -> bool:
        """A chunked prefill is in neither count: only the tokens show it."""
        return self.running + self.waiting == 0 and self.used_tokens + self.waiting_uncached_tokens > 0

    @property
    def busy(self) -> bool:
        """Whether anything runs, waits or holds tokens."""
        return self.running + self.waiting + self.used_tokens + self.waiting_uncached_tokens > 0

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """The engine's own prefill rate, None while it has done too little."""
        if self.prefill_tokens < RATE_MIN_TOKENS or self.prefill_busy_us <= 0:
            return None
        return self.prefill_tokens / (self.prefill_busy_us / 1e6)


def parse_loads(body: Mapping[str, Any]) -> Loads:
    """Read an answer of `/v1/loads`.

    Raises:
        BadAnswer: A field is missing or no number.
    """
    try:
        ranks = body["loads"]
        if not ranks:
            raise BadAnswer("/v1/loads: no rank in it")
        return Loads(
            ranks=len(ranks),
            running=_sum(ranks, "num_running_reqs"),
            waiting=_sum(ranks, "num_waiting_reqs"),
            waiting_uncached_tokens=_sum(ranks, "num_waiting_uncached_tokens", optional=True),
            used_tokens=_sum(ranks, "num_used_tokens"),
            total_tokens=_sum(ranks, "max_total_num_tokens"),
            prefill_tokens=_sum(ranks, "total_prefill_uncached_tokens", optional=True),
            prefill_busy_us=_sum(ranks, "total_prefill_busy_us", optional=True),
        )
    except (KeyError, TypeError, ValueError) as problem:
        raise BadAnswer(f"/v1/loads: {problem!r}") from problem


def _sum(ranks: list[Mapping[str, Any]], name: str, *, optional: bool = False) -> int:
    return sum(int(rank.get(name, 0) if optional else rank[name]) for rank in ranks)


class Polls:
    """Polls every replica of the fleet. Use as an async context manager."""

    def __init__(self, fleet: Fleet, ledger: Ledger, metrics: Metrics, *, max_queued_requests: int) -> None:
        """Poll nobody yet: `follow` does."""
        self._fleet = fleet
        self._ledger = ledger
        self._metrics = metrics
        self._room_below = max(1, max_queued_requests // 2)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Polls:
        """Open."""
        # Pods of the cluster, never through a proxy; one connection each.
        connector = aiohttp.TCPConnector(limit=0, limit_per_host=2, keepalive_timeout=30)
        self._session = aiohttp.ClientSession(connector=connector, trust_env=False, auto_decompress=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop and close."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def follow(self) -> None:
        """Begin with replicas that are new, stop with those that are gone."""
        for uid in [uid for uid in self._tasks if uid not in self._fleet.members]:
            self._tasks.pop(uid).cancel()
        for uid in self._fleet.members:
            if uid not in self._tasks:
                self._tasks[uid] = asyncio.ensure_future(self._loop(uid))

    async def _loop(self, uid: str) -> None:
        clock = asyncio.get_running_loop().time
        # Spread over the second, so that the polls of fifty replicas never stand in front of a pick together.
        due_s = clock() + (hash(uid) % 1000) / 1000 * PERIOD_S
        while (member := self._fleet.members.get(uid)) is not None:
            await asyncio.sleep(max(0.0, due_s - clock()))
            due_s = max(due_s + PERIOD_S, clock())
            if member.pod.ready or member.replica.ready_since_s > 0:
                await self.poll(member)

    async def poll(self, member: Member) -> None:
        """Ask one replica once."""
        replica = member.replica
        picks, releases = replica.own_picks_since_poll, replica.own_releases_since_poll
        try:
            loads = await self._ask(replica.address)
        except ConnectionRefusedError:
            self._miss(member, dead=True)
            return
        except (aiohttp.ClientError, OSError, TimeoutError, BadAnswer, ValueError):
            self._miss(member, dead=False)
            return
        # What happened while the answer travelled is not in it.
        replica.own_picks_since_poll -= picks
        replica.own_releases_since_poll -= releases
        self._take(member, loads)

    def _take(self, member: Member, loads: Loads) -> None:
        replica = member.replica
        replica.polled_in_flight = loads.running + loads.waiting
        replica.polled_at_s = self._ledger.clock_s()
        replica.kv_used_tokens = loads.used_tokens
        replica.kv_total_tokens = loads.total_tokens
        replica.prefilling = loads.prefilling
        replica.prefill_tokens_per_s = loads.prefill_tokens_per_s
        note_prefill(self._ledger.state, replica, loads.waiting_uncached_tokens // loads.ranks, replica.polled_at_s)
        if replica.refused and loads.waiting < self._room_below:
            replica.refused = False
        member.queued = loads.waiting
        member.engine_busy = loads.busy
        self._fleet.answered(member)

    def _miss(self, member: Member, *, dead: bool) -> None:
        self._metrics.missed_polls.inc()
        self._fleet.missed(member, dead=dead)

    async def _ask(self, address: str) -> Loads:
        assert self._session is not None
        limit = aiohttp.ClientTimeout(total=LIMIT_S)
        try:
            async with self._session.get(f"http://{address}/v1/loads?include=core", timeout=limit) as response:
                if (response.content_length or 0) > MAX_ANSWER_BYTES:
                    raise BadAnswer(f"/v1/loads: {response.content_length} bytes")
                body = await response.read()
                if response.status != 200:
                    raise BadAnswer(f"/v1/loads: {response.status}")
        except aiohttp.ClientConnectorError as problem:
            if isinstance(problem.os_error, ConnectionRefusedError):
                raise ConnectionRefusedError from problem
            raise
        return parse_loads(json.loads(body))
