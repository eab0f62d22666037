"""A queue of keys with the semantics of client-go's work queue, on asyncio.

It decides when a key is worked on, never what is done: a key waits at most once, runs at most once at a
time, and runs once more when it was added while running. Retries back off per key. No threads, no
persistence: after a restart the first full listing adds every key again.
"""

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

_LOGGER = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

FIRST_RETRY_S = 0.5
LAST_RETRY_S = 300.0
_JITTER = 0.2
_FRESH_PER_BULK = 10
"""After so many fresh keys one bulk key is taken: a storm of events cannot hold up a resync for ever."""


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing more to do until the next event."""


@dataclass(frozen=True, slots=True)
class RequeueAfter:
    """All went well; look at the key again after `delay_s` seconds, or at the next event."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Retry:
    """It failed in a way that may pass: try again after this key's backoff."""


Outcome: TypeAlias = Done | RequeueAfter | Retry
Handler: TypeAlias = Callable[[K], Awaitable[Outcome]]


class KeyedQueue(Generic[K]):
    """Keys waiting for work, each at most once. Use it from one event loop only.

    Args:
        jitter: source of the backoff's jitter.
        on_start: called with the seconds that a key waited, each time one starts.
    """

    def __init__(
        self,
        *,
        jitter: random.Random | None = None,
        on_start: Callable[[float], None] | None = None,
    ) -> None:
        self._jitter = jitter or random.Random()
        self._on_start = on_start
        # The lanes, the running and the dirty keys remember since when, in loop time.
        self._fresh: OrderedDict[K, float] = OrderedDict()
        self._bulk: OrderedDict[K, float] = OrderedDict()
        self._running: dict[K, float] = {}
        self._dirty: dict[K, float] = {}
        self._dirty_fresh: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._available = asyncio.Semaphore(0)
        self._fresh_in_a_row = 0
        self._adds_total = 0
        self._retries_total = 0

    @property
    def depth(self) -> int:
        """Keys that wait for a worker now (not those waiting for a delay)."""
        return len(self._fresh) + len(self._bulk) + len(self._dirty)

    @property
    def delayed(self) -> int:
        """Keys that wait for their delay or backoff to pass."""
        return len(self._timers)

    @property
    def running(self) -> int:
        """Keys that a worker holds now."""
        return len(self._running)

    @property
    def oldest_s(self) -> float:
        """Seconds that the oldest waiting or running key has been here, 0 when idle. For liveness."""
        since = [*self._fresh.values(), *self._bulk.values(), *self._dirty.values(), *self._running.values()]
        return _now() - min(since) if since else 0.0

    @property
    def adds_total(self) -> int:
        """How often a key was put in line, duplicates not counted."""
        return self._adds_total

    @property
    def retries_total(self) -> int:
        """How often a key was sent to its backoff."""
        return self._retries_total

    def failures(self, key: K) -> int:
        """Retries of this key since it last went well."""
        return self._failures.get(key, 0)

    def add(self, key: K, *, fresh: bool = True) -> None:
        """Put a key in line, unless it waits already.

        Args:
            key: the key.
            fresh: an event about this key, served before the keys of a bulk resync. A key that waits in the
                bulk lane moves to the fresh one and keeps its age.
        """
        if key in self._running:
            if key not in self._dirty:
                self._adds_total += 1
            self._dirty.setdefault(key, _now())
            if fresh:
                self._dirty_fresh.add(key)
        elif key in self._bulk:
            if fresh:
                self._fresh[key] = self._bulk.pop(key)
        elif key not in self._fresh:
            self._adds_total += 1
            self._enqueue(key, since=_now(), fresh=fresh)

    def add_after(self, key: K, delay_s: float) -> None:
        """Add the key when `delay_s` seconds have passed. Of several delays of a key the earliest wins."""
        if delay_s <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + delay_s
        pending = self._timers.get(key)
        if pending is not None:
            if pending.when() <= due:
                return
            pending.cancel()
        self._timers[key] = loop.call_at(due, self._delay_passed, key)

    def retry(self, key: K) -> None:
        """Add the key after its backoff: 0.5 s at first, doubled each time, 300 s at most, ±20% jitter."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self._retries_total += 1
        backoff_s = min(FIRST_RETRY_S * 2.0 ** min(failures, 20), LAST_RETRY_S)
        self.add_after(key, min(backoff_s * self._jitter.uniform(1 - _JITTER, 1 + _JITTER), LAST_RETRY_S))

    def forget(self, key: K) -> None:
        """Start this key's backoff anew. A pending `add_after` stays."""
        self._failures.pop(key, None)

    async def run(
        self,
        *,
        workers: int,
        handler: Handler[K],
        stop: asyncio.Event,
        grace_s: float = 10.0,
    ) -> None:
        """Work on keys until `stop` is set; then let running handlers finish for at most `grace_s` seconds.

        To be called once; keys that still wait at the end stay undone, pending delays are dropped.
        An exception of the handler is logged and counts as `Retry`; it never ends a worker.
        """
        tasks = [asyncio.create_task(self._work(handler, stop), name=f"worker-{i}") for i in range(workers)]
        try:
            await stop.wait()
            # One permit each, beyond the keys in line: idle workers wake, see `stop` and leave.
            for _ in tasks:
                self._available.release()
            _, late = await asyncio.wait(tasks, timeout=grace_s)
            if late:
                _LOGGER.warning("Cancelling work on %s: not done %g s after the stop", [*self._running], grace_s)
        finally:
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, handler: Handler[K], stop: asyncio.Event) -> None:
        while True:
            await self._available.acquire()
            if stop.is_set():
                return
            key, waited_s = self._start_next()
            try:
                outcome = await self._call(handler, key, waited_s)
            finally:
                self._end(key)
            match outcome:
                case Done():
                    self.forget(key)
                case RequeueAfter(delay_s):
                    self.forget(key)
                    self.add_after(key, delay_s)
                case Retry():
                    self.retry(key)

    async def _call(self, handler: Handler[K], key: K, waited_s: float) -> Outcome:
        try:
            if self._on_start is not None:
                self._on_start(waited_s)
            return await handler(key)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Something inside the handler was cancelled, not this worker.
            _LOGGER.exception("Work on %s was cancelled from within; trying again later", key)
        except Exception:
            _LOGGER.exception("Work on %s failed; trying again later", key)
        return Retry()

    def _start_next(self) -> tuple[K, float]:
        take_bulk = self._bulk and (not self._fresh or self._fresh_in_a_row >= _FRESH_PER_BULK)
        self._fresh_in_a_row = 0 if take_bulk else self._fresh_in_a_row + 1
        key, since = (self._bulk if take_bulk else self._fresh).popitem(last=False)
        now = self._running[key] = _now()
        return key, now - since

    def _end(self, key: K) -> None:
        del self._running[key]
        since = self._dirty.pop(key, None)
        if since is not None:
            self._enqueue(key, since=since, fresh=key in self._dirty_fresh)
            self._dirty_fresh.discard(key)

    def _enqueue(self, key: K, *, since: float, fresh: bool) -> None:
        (self._fresh if fresh else self._bulk)[key] = since
        self._available.release()

    def _delay_passed(self, key: K) -> None:
        del self._timers[key]
        self.add(key)


def _now() -> float:
    return asyncio.get_running_loop().time()
