"""Virtual time: loops in which hours pass at once, so that no unit test sleeps."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

_MOST_VIRTUAL_S = 7 * 86_400.0


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that never waits: it moves the loop's clock to the next timer instead."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("deadlock: nothing is scheduled and nothing can happen any more")
            self.now_s += timeout
            if self.now_s > _MOST_VIRTUAL_S:
                raise RuntimeError("a week of virtual time has passed: something waits for ever")
        return ready


class _VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def _run(scenario: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=_VirtualTimeLoop) as runner:
        return runner.run(scenario)


@pytest.fixture(scope="session")
def in_virtual_time() -> Callable[[Coroutine[Any, Any, T]], T]:
    """Runs a coroutine on a loop whose clock jumps: `in_virtual_time(scenario())`."""
    return _run
