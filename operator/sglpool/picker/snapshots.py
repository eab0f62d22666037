"""Homes on file, so that a picker that restarts knows them: lines of JSON in the pod's memory.

Every two seconds the conversations that were seen since are appended, and now and then the file is written anew. The
same lines are what a new router asks its siblings for. Written a few at a time: no pick waits for a snapshot.
Not here: what a conversation is (`routing.state`), the store that routers share (`store`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

from sglpool.routing.records import VERSION, RecordError
from sglpool.routing.state import RoutingState
from sglpool.routing.types import ConversationKey

MAX_CONVERSATIONS = 50_000
"""The latest ones: what is older is unlikely to come back, and the file lies in memory."""
SLICE = 16
"""Conversations written at a stretch: little more than a tenth of a millisecond."""
PERIOD_S = 2.0
"""Often, since finding out what was seen meanwhile is a stretch that picks wait for; not more often, since a busy
conversation is written each time. What has ended since is in the access log, which outlives a picker too."""
LOOK = 500
"""Keys looked at in one stretch."""
PAUSE_S = 0.001
"""Between two slices, so that picks that wait come first, and not a slice after each of them."""
SLACK = 5_000
"""Lines beyond the conversations before the file is written anew."""

_LOG = logging.getLogger("sglpool.picker")


class Snapshots:
    """The file of one router."""

    def __init__(self, path: Path, state: RoutingState, clock_s: Callable[[], float]) -> None:
        """Use the file at `path`."""
        self._path = path
        self._state = state
        self._clock_s = clock_s
        self._keys: list[ConversationKey] = []
        """Whose lines the file has, from the first to the last."""
        self._saved_until_s = 0.0
        self._busy = asyncio.Lock()

    def load(self) -> int:
        """Take over what the file holds; a broken line costs its conversation alone.

        Returns:
            Conversations that are known afterwards.
        """
        try:
            with self._path.open(encoding="utf-8", errors="replace") as file:
                absorb_lines(self._state, file, self._clock_s(), str(self._path))
        except FileNotFoundError:
            return 0
        return len(self._state.conversations)

    async def run(self) -> None:
        """Save for ever."""
        while True:
            await asyncio.sleep(PERIOD_S)
            await self.save()

    async def save(self) -> None:
        """Append what was seen since the last time; write the file anew when it holds too much that is old."""
        async with self._busy:
            began_s = self._clock_s()
            if not self._keys:
                await self._write_anew(list(self._state.conversations)[-MAX_CONVERSATIONS:])
            else:
                await self._append(seen_since(self._state, self._saved_until_s))
                if len(self._keys) > 1.3 * len(self._state.conversations) + SLACK:
                    await self._write_anew(await _latest(self._keys))
            self._saved_until_s = began_s

    async def _append(self, changed: list[ConversationKey]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            async for text, keys in _slices(self._state, changed):
                file.write(text)
                self._keys += keys

    async def _write_anew(self, conversations: list[ConversationKey]) -> None:
        draft = self._path.with_name(f".{self._path.name}.new")
        written: list[ConversationKey] = []
        with draft.open("w", encoding="utf-8") as file:
            file.write(_header(self._state))
            async for text, keys in _slices(self._state, conversations):
                file.write(text)
                written += keys
        draft.replace(self._path)
        self._keys = written


async def _latest(keys: list[ConversationKey]) -> list[ConversationKey]:
    """Each of them once, the latest first and no more than are kept.

    Of a list of one's own: all that the state remembers cannot be looked at in pieces while it changes, and at once it
    takes milliseconds.
    """
    latest: dict[ConversationKey, None] = {}
    for at in range(len(keys), 0, -LOOK):
        latest.update(dict.fromkeys(reversed(keys[max(0, at - LOOK) : at])))
        if len(latest) >= MAX_CONVERSATIONS:
            break
        await asyncio.sleep(PAUSE_S)
    return list(latest)[:MAX_CONVERSATIONS]


def seen_since(state: RoutingState, since_s: float) -> list[ConversationKey]:
    """Conversations seen since then, the oldest first."""
    changed = []
    for key, conversation in reversed(state.conversations.items()):
        if conversation.last_seen_s < since_s:
            break
        changed.append(key)
    changed.reverse()
    return changed


async def export_lines(state: RoutingState) -> AsyncIterator[str]:
    """Everything worth keeping, in pieces of whole lines; the event loop turns between them."""
    yield _header(state)
    async for text, _ in _slices(state, list(state.conversations)[-MAX_CONVERSATIONS:]):
        yield text


def _header(state: RoutingState) -> str:
    header = {
        "version": VERSION,
        "tokens_per_byte": state.tokens_per_byte,
        "residency_s": dict(state.residency_s),
    }
    return json.dumps(header) + "\n"


async def _slices(state: RoutingState, keys: list[ConversationKey]) -> AsyncIterator[tuple[str, list[ConversationKey]]]:
    for at in range(0, len(keys), SLICE):
        # A conversation may be gone by the time that its turn comes.
        records = {key: record for key in keys[at : at + SLICE] if (record := state.record(key)) is not None}
        yield "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records.values()), list(records)
        await asyncio.sleep(PAUSE_S)


def absorb_lines(state: RoutingState, lines: Iterable[str], now_s: float, where: str) -> int:
    """Take over lines of `export_lines`. What is known already and newer stays; what is too old does not come back.

    Args:
        state: changed.
        lines: the lines; broken ones are left out.
        now_s: the time.
        where: what to call them in the log.

    Returns:
        How many lines could not be used.
    """
    bad = 0
    header: dict[str, Any] | None = None
    for line in lines:
        try:
            data = json.loads(line)
            if isinstance(data, dict) and "version" in data:
                header = data
            elif now_s - float(data["last_seen_s"]) < state.config.ttl_s:
                state.absorb(data, now_s, where)
        except (ValueError, TypeError, KeyError):
            bad += 1
    if bad:
        _LOG.warning("%s: %d lines could not be used", where, bad)
    if header is not None:
        try:
            # The header alone; and sorted by age, which lines of several sources are not.
            state.load({**header, "conversations": []}, now_s)
        except RecordError as problem:
            _LOG.warning("%s: %s", where, problem)
    return bad
