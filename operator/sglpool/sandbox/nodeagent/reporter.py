"""Reports of one pod: its newest status until the API server has it, and its events as long as there are not too many.

Not here: how a report is sent, which is the agent's `Reporter`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine

import aiohttp

from sglpool.sandbox.apiserver import Manifest, RequestRefused
from sglpool.sandbox.errors import SandboxError
from sglpool.sandbox.nodeagent.backoff import Doubling, Timings
from sglpool.sandbox.nodeagent.ports import PodGone, Reporter

_log = logging.getLogger(__name__)

_TROUBLE = (OSError, SandboxError, aiohttp.ClientError)
"""What a report can fail with and be tried again."""

MAX_WAITING_EVENTS = 100
EVENT_BURST = 25
EVENT_REFILL_S = 300.0
"""As the kubelet's: so many events of one reason and container at once, then one in so many seconds."""


def is_gone(error: BaseException) -> bool:
    """Whether an error says that the pod is no longer there, or that another one has its name."""
    return isinstance(error, PodGone) or (isinstance(error, RequestRefused) and error.status in (404, 409))


async def persist(call: Callable[[], Coroutine[None, None, None]], what: str, timings: Timings) -> bool:
    """Send something until it is done; False when the pod is gone."""
    waits = Doubling(timings.report_initial_s, timings.report_max_s)
    while True:
        try:
            await call()
        except _TROUBLE as error:
            if is_gone(error):
                return False
            _log.warning("%s is not reported yet: %s", what, error)
            await asyncio.sleep(waits.next_s())
        else:
            return True


class StatusReports:
    """Keeps the API server's status of a pod equal to the newest one; at most one report is under way."""

    def __init__(self, pod: Manifest, reporter: Reporter, timings: Timings) -> None:
        """Report about `pod`."""
        self._pod = pod
        self._reporter = reporter
        self._timings = timings
        self._wanted: Manifest | None = None
        self._sent: Manifest | None = None
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self.gone = asyncio.Event()
        """Set once the API server no longer has the pod."""

    def offer(self, status: Manifest) -> None:
        """Have a status reported, unless it is the one reported last."""
        self._wanted = status
        if status != self._sent and not self.gone.is_set():
            self._settled.clear()
            self._changed.set()

    def repeat(self) -> None:
        """Report the last status again: somebody else has written over it."""
        self._sent = None
        if self._wanted is not None:
            self.offer(self._wanted)

    async def settled(self) -> None:
        """Return once the newest status is reported, or the pod is gone."""
        await self._settled.wait()

    async def run(self) -> None:
        """Report until the pod is gone or this is cancelled."""
        key = f"status of pod {self._pod['metadata']['name']}"
        while await self._next():
            if not await persist(self._send, key, self._timings):
                self.gone.set()
                self._settled.set()
                return

    async def _next(self) -> bool:
        while self._wanted is None or self._wanted == self._sent:
            self._settled.set()
            self._changed.clear()
            await self._changed.wait()
        return True

    async def _send(self) -> None:
        # Read anew at every attempt: the newest wins.
        status = self._wanted
        if status is not None and status != self._sent:
            await self._reporter.status(self._pod, status)
            self._sent = status


class Events:
    """Writes events one after the other, drops what comes too often, and never holds anyone up."""

    def __init__(self, pod: Manifest, reporter: Reporter) -> None:
        """Write events about `pod`."""
        self._pod = pod
        self._reporter = reporter
        self._queue: asyncio.Queue[tuple[str, str, str, str]] = asyncio.Queue(MAX_WAITING_EVENTS)
        self._tokens: dict[tuple[str, str], tuple[float, float]] = {}

    def normal(self, reason: str, message: str, container: str = "") -> None:
        """Something happened."""
        self._put("Normal", reason, message, container)

    def warn(self, reason: str, message: str, container: str = "") -> None:
        """Something went wrong."""
        self._put("Warning", reason, message, container)

    async def run(self) -> None:
        """Write until cancelled. An event that cannot be written is lost."""
        while True:
            type_, reason, message, container = await self._queue.get()
            try:
                await self._reporter.event(self._pod, type_, reason, message, container)
            except _TROUBLE as error:
                _log.debug("an event of pod %s is lost: %s", self._pod["metadata"]["name"], error)
            finally:
                self._queue.task_done()

    async def drained(self, *, limit_s: float) -> None:
        """Return once all are written, or after so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._queue.join()

    def _put(self, type_: str, reason: str, message: str, container: str) -> None:
        if self._allowed(reason, container):
            with contextlib.suppress(asyncio.QueueFull):
                self._queue.put_nowait((type_, reason, message, container))

    def _allowed(self, reason: str, container: str) -> bool:
        """Take a token of the bucket that this reason and container have."""
        now_s = asyncio.get_running_loop().time()
        tokens, filled_s = self._tokens.get((reason, container), (float(EVENT_BURST), now_s))
        tokens = min(float(EVENT_BURST), tokens + (now_s - filled_s) / EVENT_REFILL_S)
        allowed = tokens >= 1
        self._tokens[reason, container] = (tokens - allowed, now_s)
        return allowed
