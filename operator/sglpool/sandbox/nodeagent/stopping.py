"""Ends one run of a container as a kubelet does: preStop hook, SIGTERM, what is left of the grace period, SIGKILL.

Not here: who wants it ended, and what happens to the container afterwards (`containers`).
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from sglpool.sandbox.nodeagent.backoff import Timings
from sglpool.sandbox.nodeagent.checks import Target
from sglpool.sandbox.nodeagent.hooks import run_hook
from sglpool.sandbox.nodeagent.ports import Exit


class Deadline:
    """A moment of the loop's clock that can come nearer while it is waited for."""

    def __init__(self, after_s: float) -> None:
        """Lie `after_s` seconds ahead."""
        self._at_s = asyncio.get_running_loop().time() + after_s
        self._moved = asyncio.Event()

    @property
    def left_s(self) -> float:
        """Seconds until then, at least 0."""
        return max(0.0, self._at_s - asyncio.get_running_loop().time())

    def shorten(self, after_s: float) -> None:
        """Come nearer: `after_s` seconds from now, if that is earlier."""
        at_s = asyncio.get_running_loop().time() + after_s
        if at_s < self._at_s:
            self._at_s = at_s
            self._moved.set()

    async def first_of(self, *tasks: asyncio.Future[Any], at_least_s: float = 0) -> bool:
        """Wait until one of the tasks is done; False when the moment came first, though not before `at_least_s`."""
        loop = asyncio.get_running_loop()
        not_before_s = loop.time() + at_least_s
        while not any(task.done() for task in tasks):
            left_s = max(self._at_s, not_before_s) - loop.time()
            if left_s <= 0:
                return False
            self._moved.clear()
            moved = asyncio.create_task(self._moved.wait())
            try:
                await asyncio.wait({*tasks, moved}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                moved.cancel()
        return True


@dataclass(slots=True, kw_only=True)
class StopOrder:
    """Why and how a run is to end.

    Attributes:
        message: Text of the Killing event.
        deadline: End of the grace period.
        run_pre_stop: Whether there is time for the preStop hook.
        turn: Waits for those that must end before this container; None if there are none.
    """

    message: str
    deadline: Deadline
    run_pre_stop: bool = True
    turn: Callable[[], Coroutine[Any, Any, object]] | None = None


async def stop_container(
    order: StopOrder,
    target: Target,
    exited: asyncio.Task[Exit],
    *,
    timings: Timings,
    warn: Callable[[str, str], None],
) -> None:
    """Carry out an order; returns when the container has ended, or could not be ended.

    Args:
        order: What to do.
        target: The container.
        exited: Its end.
        timings: Limits.
        warn: Gets reason and message of a Warning event.
    """
    hook = (target.spec.get("lifecycle") or {}).get("preStop")
    if hook and order.run_pre_stop:
        run = asyncio.create_task(run_hook(hook, target, limit_s=order.deadline.left_s))
        if failure := await _within(order.deadline, run, exited):
            warn("FailedPreStopHook", f"PreStopHook failed: {failure}")
    if order.turn is not None:
        await _within(order.deadline, asyncio.create_task(order.turn()), exited)
    if exited.done():
        return
    target.container.signal(signal.SIGTERM)
    if await order.deadline.first_of(exited, at_least_s=timings.minimum_grace_s):
        return
    target.container.kill()
    await asyncio.wait({exited}, timeout=timings.kill_limit_s)


async def _within(deadline: Deadline, task: asyncio.Future[Any], exited: asyncio.Task[Exit]) -> object:
    """Result of a task, None when the deadline or the container's end came first; the task is over then."""
    try:
        await deadline.first_of(task, exited)
        return task.result() if task.done() else None
    finally:
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
