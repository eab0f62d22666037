"""An event loop whose clock jumps: whatever all tasks wait for happens at once, at its exact moment.

Nothing in it may wait for a socket or a thread: the clock would run ahead of them.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_LIMIT_S = 30 * 86400


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting for a timer, moves the clock to it."""

    now_s = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout != 0:
            assert timeout is not None, "all tasks wait for something that will never happen"
            self.now_s += max(timeout, 0)
            assert self.now_s < _LIMIT_S, "a month has passed and the test still runs"
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes only when nobody has anything to do."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
