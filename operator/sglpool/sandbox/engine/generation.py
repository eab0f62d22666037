"""From a prompt to a request in the engine, and from its tokens to a response: the part all APIs share.

Checks lengths, draws the reply, holds requests back while a fault hangs them, and drops them when the client
has gone. Not here: how an API writes its response.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from typing import Any, Protocol

from sglpool.enginemodel.config import Request
from sglpool.enginemodel.records import Finished
from sglpool.enginemodel.tokens import block_ids, count_tokens
from sglpool.sandbox.engine import filler
from sglpool.sandbox.engine.driver import Driver, Stream
from sglpool.sandbox.engine.errors import ApiError, ClientGone, QueueIsFull, invalid
from sglpool.sandbox.engine.filler import Reply
from sglpool.sandbox.engine.http import Exchange
from sglpool.sandbox.engine.spec import Spec

DISCONNECT_POLL_S = 2.0
"""A client of a plain response that left is noticed at this pace, as SGLang does."""
LONG_PROMPT_TOKENS = 16_000
"""The first prompt over this compiles kernels."""
_MAX_RID_CHARS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a client asks for, whatever the API.

    Attributes:
        prompt: the rendered prompt.
        images: images in it.
        rid: the request's id.
        streaming: whether the client reads a stream.
        limit_tokens: the most tokens of output, or None.
        ignore_eos: generate to the limit.
        min_tokens: generate at least so many.
        tool: name and schema of the tool that must be called, or None.
    """

    prompt: bytes
    rid: str
    images: int = 0
    streaming: bool = False
    limit_tokens: int | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    tool: tuple[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """A request that the engine has accepted."""

    stream: Stream
    reply: Reply
    prompt_tokens: int
    images: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a response."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    @staticmethod
    def of(finished: Finished) -> Usage:
        """The counts of a request that has ended."""
        cached = finished.cached_device_tokens + finished.cached_host_tokens
        return Usage(finished.prompt_tokens, finished.completion_tokens, cached)


class Writer(Protocol):
    """How an API writes a stream."""

    def start(self) -> bytes:
        """Events before the first token."""

    def tokens(self, from_token: int, to_token: int) -> bytes:
        """Events for some tokens."""

    def end(self, finished: Finished) -> bytes:
        """Events after the last token."""

    def refused(self, error: QueueIsFull) -> bytes:
        """Events of a stream that the queue refused after its 200."""


class Generation:
    """Takes requests in and serves their tokens."""

    def __init__(self, spec: Spec, driver: Driver) -> None:
        """Serve from `driver` under the limits of `spec`."""
        self.driver = driver
        self.in_flight: dict[str, None] = {}
        """Ids of the requests that the server has accepted and not finished; a drain waits for them."""
        self.open_gate = asyncio.Event()
        """Closed while a fault hangs requests before the scheduler, or while generation is paused."""
        self.open_gate.set()
        self._spec = spec
        self._seen_prompt = False
        self._seen_image = False
        self._seen_long_prompt = False

    async def respond(self, exchange: Exchange, ask: Ask, *, writer: WriterOf, plain: PlainOf) -> None:
        """Serve one request, as a stream or at once.

        Raises:
            ApiError: it is refused.
            ClientGone: the client left before the response began.
        """
        if ask.rid in self.in_flight:
            raise ApiError(400, f"Duplicate request ID detected: {ask.rid}")
        self.in_flight[ask.rid] = None
        try:
            if ask.streaming:
                await self._stream(exchange, ask, writer)
            else:
                running = self._submit(ask) if self.open_gate.is_set() else await self._when_open(exchange, ask)
                finished = await self._whole(exchange, running)
                await exchange.reply_json(plain(running, finished))
        finally:
            del self.in_flight[ask.rid]
            self.driver.abort(ask.rid)

    async def _stream(self, exchange: Exchange, ask: Ask, writer_of: WriterOf) -> None:
        try:
            running = self._submit(ask) if self.open_gate.is_set() else await self._when_open(exchange, ask)
        except QueueIsFull as error:
            await exchange.start_events()
            await exchange.finish(writer_of(None).refused(error))
            return
        stream, writer, sent = running.stream, writer_of(running), 0
        exchange.watch(lambda: self.driver.abort(ask.rid))
        if not stream.tokens and stream.finished is None:
            await stream.wait()
        # The head of the response waits for the first token, as SGLang's does.
        await exchange.start_events()
        data = writer.start()
        while not exchange.gone:
            tokens, finished = stream.tokens, stream.finished
            if tokens > sent:
                data += writer.tokens(sent, tokens)
                sent = tokens
            if finished is not None:
                await exchange.finish(data + writer.end(finished))
                return
            if data:
                await exchange.write(data)
                data = b""
            # Tokens may have come while the client was slow to read.
            if stream.tokens == sent and stream.finished is None:
                await stream.wait()

    async def _whole(self, exchange: Exchange, running: Running) -> Finished:
        """Wait for the end.

        Raises:
            ClientGone: the client left; the request is dropped at the next look.
        """
        exchange.watch()
        stream = running.stream
        loop = asyncio.get_running_loop()
        look_s = loop.time() + DISCONNECT_POLL_S
        while stream.finished is None:
            await stream.wait(max(look_s - loop.time(), 0.0))
            if loop.time() >= look_s:
                if exchange.gone:
                    raise ClientGone
                look_s = loop.time() + DISCONNECT_POLL_S
        return stream.finished

    async def _when_open(self, exchange: Exchange, ask: Ask) -> Running:
        """Hold the request back until the gate opens.

        Raises:
            ClientGone: the client did not wait.
        """
        left = asyncio.Event()
        exchange.watch(left.set)
        loop = asyncio.get_running_loop()
        waits = [loop.create_task(left.wait()), loop.create_task(self.open_gate.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if exchange.gone:
            raise ClientGone
        return self._submit(ask)

    def _submit(self, ask: Ask) -> Running:
        prompt_tokens = count_tokens(ask.prompt)
        reply = self._reply(ask, prompt_tokens)
        request = Request(
            rid=ask.rid,
            ids=block_ids(ask.prompt + reply.stream(), self._spec.engine.page_size_tokens),
            prompt_tokens=prompt_tokens,
            output_tokens=reply.tokens,
            extra_prefill_s=self._first_time_s(prompt_tokens, ask.images),
        )
        stream = Stream(ask.rid, streaming=ask.streaming)
        self.driver.submit(request, stream)
        return Running(stream, reply, prompt_tokens, ask.images)

    def submit_own(self, prompt: bytes, output_tokens: int, *, images: int) -> Stream:
        """Hand in a request of the server's own, past the gate: its warm-up.

        Raises:
            ApiError: the engine takes none.
        """
        ask = Ask(
            prompt=prompt, images=images, rid=f"WARMUP_{uuid.uuid4().hex}", limit_tokens=output_tokens, ignore_eos=True
        )
        return self._submit(ask).stream

    def submit_probe(self, rid: str) -> Stream:
        """Hand in the one-token request of a health check.

        Raises:
            ApiError: the engine takes none now.
        """
        stream = Stream(rid, streaming=False, probe=True)
        ids = block_ids(bytes(filler.TOKEN_BYTES * 2), self._spec.engine.page_size_tokens)
        self.driver.submit(Request(rid=rid, ids=ids, prompt_tokens=1, output_tokens=1), stream)
        return stream

    def _reply(self, ask: Ask, prompt_tokens: int) -> Reply:
        limit_tokens = self._limit(ask, prompt_tokens)
        tokens = limit_tokens if ask.ignore_eos else max(filler.natural_tokens(ask.prompt), ask.min_tokens, 1)
        if ask.tool is not None:
            return filler.tool_call(*ask.tool, tokens, limit_tokens=limit_tokens)
        return filler.words(tokens, limit_tokens=limit_tokens)

    def _limit(self, ask: Ask, prompt_tokens: int) -> int:
        """The most tokens of output.

        Raises:
            ApiError: prompt and output together do not fit the context.
        """
        context = self._spec.context_length_tokens
        if prompt_tokens >= context:
            text = f"The input ({prompt_tokens} tokens) is longer than the model's context length ({context} tokens)."
            raise ApiError(400, text)
        room_tokens = min(context, self._spec.engine.max_total_tokens) - prompt_tokens - 1
        if ask.limit_tokens is None:
            return max(room_tokens, 1)
        if prompt_tokens + ask.limit_tokens > context:
            raise ApiError(
                400,
                f"Requested token count exceeds the model's maximum context length of {context} tokens. You requested "
                f"a total of {prompt_tokens + ask.limit_tokens} tokens: {prompt_tokens} tokens from the input messages "
                f"and {ask.limit_tokens} tokens for the completion. Please reduce the number of tokens in the input "
                "messages or the completion to fit within the limit.",
            )
        return max(min(ask.limit_tokens, room_tokens), 1)

    def _first_time_s(self, prompt_tokens: int, images: int) -> float:
        """What the first prompt, the first image and the first long prompt pay for kernels."""
        rates = self._spec.engine.rates
        extra_s = 0.0 if self._seen_prompt else rates.first_prompt_s
        self._seen_prompt = True
        if images and not self._seen_image:
            self._seen_image = True
            extra_s += rates.first_image_s
        if prompt_tokens > LONG_PROMPT_TOKENS and not self._seen_long_prompt:
            self._seen_long_prompt = True
            extra_s += rates.first_long_prompt_s
        return extra_s


class WriterOf(Protocol):
    """Makes the writer of a stream; without a request for a refused one."""

    def __call__(self, running: Running | None) -> Writer:
        """The writer for what runs."""


class PlainOf(Protocol):
    """Makes the body of a plain response."""

    def __call__(self, running: Running, finished: Finished) -> dict[str, Any]:
        """The body."""


def request_id(body: dict[str, Any]) -> str:
    """The client's own id of a request, or a new one.

    Raises:
        ApiError: it is no short text.
    """
    rid = body.get("rid")
    if rid is None:
        return uuid.uuid4().hex
    if not isinstance(rid, str) or not 0 < len(rid) <= _MAX_RID_CHARS:
        raise invalid("rid", f"Input should be a string of 1 to {_MAX_RID_CHARS} characters", "string_type")
    return rid


def whole_number(body: dict[str, Any], *names: str, least: int = 1) -> int | None:
    """The first of some fields that is set.

    Raises:
        ApiError: it is no whole number, or below `least`.
    """
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise invalid(name, "Input should be a valid integer", "int_type")
        if value < least:
            raise ApiError(400, f"{name} must be at least {least}, got {value}.")
        return value
    return None
