"""What routers tell each other through the store once a second: load on replicas, and whose conversations came over.

A router's counts are in a key that its siblings read. A conversation that comes to another router than before goes
into a list of the router that had it, which then waits for it no longer. Everything is a hint: what is lost makes load
less even for a minute. Not here: the connection, and what happens without it (`store`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from redis.asyncio.client import Pipeline
from redis.exceptions import RedisError

from sglpool.picker.ledger import Ledger
from sglpool.routing.types import ConversationKey

HEARTBEAT_TTL_S = 5
MAX_TAKEN = 2_000
"""Conversations that a router tells of in one heartbeat, and reads in one; what is beyond is not told."""
MAX_UNREAD = 2 * MAX_TAKEN
"""Entries that a list may hold, the newest: its router may be slow or gone."""


class Exchange:
    """The heartbeats of one router."""

    def __init__(self, ledger: Ledger, *, prefix: str, router: str) -> None:
        """Tell nothing yet.

        Args:
            ledger: Whose counts are told, and which hears of others.
            prefix: Beginning of the keys.
            router: Our name among the routers.
        """
        self._ledger = ledger
        self._prefix = prefix
        self._router = router
        self._taken: dict[str, list[str]] = {}
        self._taken_count = 0

    def took_over(self, key: ConversationKey, had_it: str) -> None:
        """Note that a conversation came here; `had_it` is the router that served it last."""
        if had_it != self._router and self._taken_count < MAX_TAKEN:
            self._taken_count += 1
            entry = f"{self._ledger.clock_s():.3f}:{key.session}:{key.conversation}"
            self._taken.setdefault(had_it, []).append(entry)

    def ask(self, pipeline: Pipeline, siblings: Sequence[str]) -> None:
        """Put a heartbeat into a pipeline; its answers are for `hear`."""
        pipeline.set(self._heart(self._router), json.dumps(self._counts()), ex=HEARTBEAT_TTL_S)
        pipeline.lrange(self._inbox(self._router), 0, MAX_TAKEN - 1)
        pipeline.ltrim(self._inbox(self._router), MAX_TAKEN, -1)
        pipeline.mget([self._heart(name) for name in (self._router, *siblings)])
        for name in set(siblings) & self._taken.keys():
            inbox = self._inbox(name)
            pipeline.rpush(inbox, *self._taken[name])
            pipeline.ltrim(inbox, -MAX_UNREAD, -1)
            pipeline.expire(inbox, int(self._ledger.config.idle_pending_s) + 1)
        self._taken, self._taken_count = {}, 0

    def hear(self, answers: Sequence[Any]) -> None:
        """Take the answers to a heartbeat.

        Raises:
            RedisError: The store did not take the counts, or did not give those of others.
        """
        told, taken, _, counts = answers[:4]
        for answer in (told, counts):
            if isinstance(answer, RedisError):
                raise answer
        self._set_others(_parsed(content) for content in counts[1:])
        # A list that is none (somebody else wrote there) costs what is in it.
        for entry in taken if isinstance(taken, list) else ():
            self._came_back_elsewhere(entry)

    def hear_nobody(self) -> None:
        """Forget what others have: they cannot be heard."""
        self._set_others([])

    def _counts(self) -> dict[str, tuple[int, int]]:
        """Requests in flight and conversations about to come back, by replica."""
        state = self._ledger.state
        # Who has nothing to pick has nobody else that forgets pauses which did not end.
        state.expire(self._ledger.clock_s())
        counts = {uid: (replica.own_in_flight, state.pending_on(uid)) for uid, replica in self._ledger.replicas.items()}
        return {uid: each for uid, each in counts.items() if any(each)}

    def _set_others(self, told: Iterable[Mapping[str, tuple[int, int]]]) -> None:
        in_flight: dict[str, int] = {}
        pending: dict[str, int] = {}
        for counts in told:
            for uid, (requests, conversations) in counts.items():
                in_flight[uid] = in_flight.get(uid, 0) + requests
                pending[uid] = pending.get(uid, 0) + conversations
        for uid, replica in self._ledger.replicas.items():
            replica.others_in_flight = in_flight.get(uid, 0)
            replica.others_pending = pending.get(uid, 0)

    def _came_back_elsewhere(self, entry: bytes) -> None:
        try:
            at_s, session, conversation = entry.decode().split(":")
            self._ledger.state.came_back_elsewhere(ConversationKey(session, conversation), float(at_s))
        except ValueError:
            return

    def _heart(self, router: str) -> str:
        return f"{self._prefix}:r:{router}"

    def _inbox(self, router: str) -> str:
        return f"{self._prefix}:t:{router}"


def _parsed(content: bytes | None) -> Mapping[str, tuple[int, int]]:
    """Another router's counts, none if they cannot be read: it may be of another version."""
    if content is None:
        return {}
    try:
        counts = json.loads(content)
        return {str(uid): (max(0, int(each[0])), max(0, int(each[1]))) for uid, each in counts.items()}
    except (ValueError, TypeError, AttributeError, LookupError):
        return {}
