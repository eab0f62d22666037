"""Something done for every pool now and then, each at its own moment, so that pools are spread over the interval.

A turn that is not over when the next is due lets that one pass; nothing is queued. Not here: what is done.
"""

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sglpool.controller.store import PoolKey

_LOG = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Pool:
    """One pool: its interval, its next turn, and whether a turn is under way."""

    interval_s: float
    timer: asyncio.TimerHandle | None = None
    busy: bool = False


class Rounds:
    """Turns of pools. Use as an async context manager: at its end, turns under way are cancelled.

    Args:
        work: Done for a pool at its turn.
        at_a_time: Pools whose turns may run side by side.
        failed: What could not be done, for the log: a defect of one pool ends no other's turns, nor its own next one.
        skipped: Called for a turn that passes because the last one is not over.
    """

    def __init__(
        self,
        work: Callable[[PoolKey], Awaitable[None]],
        *,
        at_a_time: int,
        failed: str,
        skipped: Callable[[], None] = lambda: None,
    ) -> None:
        self._work = work
        self._failed = failed
        self._skipped = skipped
        self._pools: dict[PoolKey, _Pool] = {}
        self._turns: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(at_a_time)
        self._open = False

    async def __aenter__(self) -> "Rounds":
        self._open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._open = False
        for key in [*self._pools]:
            self.forget(key)
        for turn in self._turns:
            turn.cancel()
        await asyncio.gather(*self._turns, return_exceptions=True)

    def every(self, key: PoolKey, interval_s: float) -> None:
        """Give a pool a turn in every interval from now on; another interval than before begins at once."""
        pool = self._pools.setdefault(key, _Pool(interval_s=0.0))
        if pool.interval_s != interval_s:
            pool.interval_s = interval_s
            self._schedule(key, pool)

    def soon(self, key: PoolKey, delay_s: float) -> None:
        """Give a pool one more turn after a while, unless its next is sooner."""
        pool = self._pools.get(key)
        if not self._open or pool is None:
            return
        loop = asyncio.get_running_loop()
        if pool.timer is None or loop.time() + delay_s < pool.timer.when():
            if pool.timer is not None:
                pool.timer.cancel()
            pool.timer = loop.call_later(delay_s, self._fire, key, pool)

    def forget(self, key: PoolKey) -> None:
        """Give a pool no more turns; one under way goes on."""
        pool = self._pools.pop(key, None)
        if pool is not None and pool.timer is not None:
            pool.timer.cancel()

    def _schedule(self, key: PoolKey, pool: _Pool) -> None:
        """Set the next turn, to the moment of the interval that the pool's name gives."""
        if not self._open:
            return
        if pool.timer is not None:
            pool.timer.cancel()
        loop = asyncio.get_running_loop()
        phase_s = zlib.crc32("/".join(key).encode()) / 2**32 * pool.interval_s
        # A timer may fire a hair early, and that moment is over then.
        turns = (loop.time() + 0.01 - phase_s) // pool.interval_s + 1
        pool.timer = loop.call_at(phase_s + turns * pool.interval_s, self._fire, key, pool)

    def _fire(self, key: PoolKey, pool: _Pool) -> None:
        self._schedule(key, pool)
        if pool.busy:
            self._skipped()
            return
        pool.busy = True
        turn = asyncio.get_running_loop().create_task(self._run(key, pool))
        self._turns.add(turn)
        turn.add_done_callback(self._turns.discard)

    async def _run(self, key: PoolKey, pool: _Pool) -> None:
        try:
            async with self._room:
                await self._work(key)
        except Exception:
            _LOG.exception("pool=%s/%s %s", *key, self._failed)
        finally:
            pool.busy = False
