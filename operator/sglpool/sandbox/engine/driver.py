"""Runs the engine model in real time and hands the tokens to whoever waits for them.

One task sleeps until the running step ends, lets the model advance and wakes the streams that got tokens. When
it is late it catches up: steps carry their own model times. With many streams it looks less often, so that one
core is not spent on waking them. Not here: HTTP, and what a token is.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import deque

from sglpool.enginemodel.config import Request
from sglpool.enginemodel.engine import Engine
from sglpool.enginemodel.errors import QueueFull, TooLong
from sglpool.enginemodel.records import Finished
from sglpool.sandbox.engine.clock import ModelClock
from sglpool.sandbox.engine.errors import ApiError, QueueIsFull
from sglpool.sandbox.engine.machine import Faults
from sglpool.sandbox.engine.telemetry import Telemetry

MAX_WAKES_PER_S = 10_000
"""Streams woken per second of wall time, all together: 200 of them at 40 events a second, with room for jitter."""
_SLICE_S = 0.25
"""When late, the model advances by this much wall time before others get their turn."""
_LAG_WINDOW_S = 10.0


class Stream:
    """One request in the engine, seen by the task that serves it."""

    __slots__ = ("_waiter", "finished", "first_wall_s", "probe", "rid", "streaming", "tokens")

    def __init__(self, rid: str, *, streaming: bool, probe: bool = False) -> None:
        """Wait for the tokens of `rid`."""
        self.rid = rid
        self.streaming = streaming
        self.probe = probe
        """A health check's own request: most metrics leave it out."""
        self.tokens = 0
        """Output tokens so far."""
        self.finished: Finished | None = None
        self.first_wall_s = 0.0
        self._waiter: asyncio.Future[None] | None = None

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until there are more tokens or the end; False when the time limit passed first."""
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        if timeout_s is None:
            await waiter
            return True
        timer = loop.call_later(timeout_s, self.wake)
        try:
            before = self.tokens
            await waiter
            return self.finished is not None or self.tokens > before
        finally:
            timer.cancel()

    def wake(self) -> None:
        """Let the waiting task look again."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class Driver:
    """The engine model and its time."""

    def __init__(self, engine: Engine, clock: ModelClock, telemetry: Telemetry) -> None:
        """Drive `engine` by `clock`; `telemetry` hears of every request and step."""
        self.engine = engine
        self.clock = clock
        self.last_output_wall_s = 0.0
        """When (monotonic) the scheduler last showed any output: what the health check looks at."""
        self._telemetry = telemetry
        self._streams: dict[str, Stream] = {}
        self._wake = asyncio.Event()
        self._advanced_s = 0.0
        self._last_pass_s = 0.0
        self._lags: deque[tuple[float, float]] = deque()
        self._healthy_rates = engine.config.rates
        self._stalled = False
        self.stopped = False
        """The scheduler is gone: what runs gets no more tokens."""

    def submit(self, request: Request, stream: Stream) -> None:
        """Hand a request to the scheduler.

        Raises:
            QueueIsFull: the bounded queue is full.
            ApiError: it can never fit, or its id is taken.
        """
        if request.rid in self._streams:
            raise ApiError(400, f"Duplicate request ID detected: {request.rid}")
        self.catch_up()
        if not stream.probe:
            self._telemetry.on_request(request.rid, self._advanced_s, streaming=stream.streaming)
        try:
            self.engine.submit(request, self._advanced_s)
        except (QueueFull, TooLong) as error:
            self._telemetry.on_rejected(request.rid)
            raise (QueueIsFull() if isinstance(error, QueueFull) else ApiError(400, str(error))) from None
        self._streams[request.rid] = stream
        self._wake.set()

    def abort(self, rid: str) -> None:
        """End a request now; nothing happens when it is not there."""
        stream = self._streams.get(rid)
        if stream is None:
            return
        self.catch_up()
        finished = self.engine.abort(rid, self._advanced_s)
        if finished is not None:
            if not stream.probe:
                self._telemetry.on_abort(rid)
            self._finish(finished)
            stream.wake()
        self._wake.set()

    def abort_all(self) -> None:
        """End every request."""
        for rid in list(self._streams):
            self.abort(rid)

    def abort_prefix(self, prefix: str) -> None:
        """End every request whose id begins so."""
        for rid in [rid for rid in self._streams if rid.startswith(prefix)]:
            self.abort(rid)

    def flush(self) -> bool:
        """Drop the caches; False while requests run."""
        self.catch_up()
        return self.engine.flush()

    def idle(self) -> bool:
        """Whether the scheduler has nothing to do."""
        return self.engine.next_event_s() is None

    def apply(self, faults: Faults) -> None:
        """Change the rates to what the faults make of them; without faults they are the healthy ones.

        A stall that ends lets the model catch up: what would have come meanwhile comes at once.
        """
        rates, slowdown = self._healthy_rates, faults.prefill_slowdown
        # Speculation can only get worse, and a step yields one token at least.
        accept_length = min(rates.accept_length, max(faults.accept_length or rates.accept_length, 1.0))
        rates = dataclasses.replace(
            rates,
            prefill_base_s_per_token=rates.prefill_base_s_per_token * slowdown,
            prefill_context_s_per_token=rates.prefill_context_s_per_token * slowdown,
            accept_length=accept_length,
        )
        self.catch_up()
        self.engine.set_rates(rates)
        self._stalled = faults.stall
        self._wake.set()

    def lag_s(self) -> float:
        """The most that the model was behind in the last seconds, in wall seconds."""
        self._forget_lags(time.monotonic())
        return max((lag for _, lag in self._lags), default=0.0)

    async def run(self) -> None:
        """Drive until cancelled."""
        resumed_s = time.monotonic()
        while not self.stopped:
            due_s = self.engine.next_event_s()
            if due_s is None or self._stalled:
                self._wake.clear()
                await self._wake.wait()
                resumed_s = time.monotonic()
                continue
            rest_s = self._last_pass_s + len(self._streams) / MAX_WAKES_PER_S - time.monotonic()
            delay_s = max(self.clock.wall_until_s(due_s), rest_s)
            # In the past when it was held up while it computed, rather than while it slept.
            planned_s = max(time.monotonic() + delay_s, resumed_s)
            await asyncio.sleep(max(delay_s, 0.0))
            self._note_lag(planned_s)
            self._advance(min(self.clock.now_s(), max(due_s, self._advanced_s) + _SLICE_S * self.clock.speed))

    def catch_up(self) -> None:
        """Advance to now; called before anything is asked of the engine."""
        if not self.stopped:
            self._advance(self.clock.now_s())

    def _advance(self, to_s: float) -> None:
        if to_s <= self._advanced_s or self._stalled:
            return
        self._advanced_s = to_s
        due_s = self.engine.next_event_s()
        if due_s is None or due_s > to_s:
            return
        self._last_pass_s = now_s = time.monotonic()
        streams = self._streams
        touched: dict[str, Stream] = {}
        for step in self.engine.advance(to_s):
            self.last_output_wall_s = now_s
            self._telemetry.on_step(step)
            for rid, tokens in step.tokens:
                stream = streams.get(rid)
                if stream is not None:
                    stream.tokens += tokens
                    touched[rid] = stream
            for finished in step.finished:
                stream = self._finish(finished)
                if stream is not None:
                    touched[finished.rid] = stream
        for stream in touched.values():
            if not stream.first_wall_s:
                stream.first_wall_s = now_s
            # Nobody looks at a plain response before its end.
            if stream.streaming or stream.finished is not None:
                stream.wake()

    def _finish(self, finished: Finished) -> Stream | None:
        stream = self._streams.pop(finished.rid, None)
        if stream is not None:
            stream.finished = finished
        return stream

    def _note_lag(self, planned_s: float) -> None:
        now_s = time.monotonic()
        lag_s = now_s - planned_s
        # The window keeps falling maxima only, so it stays short.
        while self._lags and self._lags[-1][1] <= lag_s:
            self._lags.pop()
        self._lags.append((now_s, lag_s))
        self._forget_lags(now_s)

    def _forget_lags(self, now_s: float) -> None:
        while self._lags and self._lags[0][0] < now_s - _LAG_WINDOW_S:
            self._lags.popleft()
