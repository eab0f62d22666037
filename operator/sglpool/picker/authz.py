"""Envoy's question before every request, and the picker's answer: HTTP/1.1 on a unix socket, parsed by hand.

This stands in the way of every request, so it is the one hot path of the picker. Envoy is the only client: it sends
small, well-formed heads without a body, one at a time on each connection. Everything else is turned away.
Not here: decisions (`ledger`), the store (`store`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import select
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Protocol, cast

from sglpool.picker.ledger import Picked, Refused
from sglpool.picker.metrics import Metrics
from sglpool.routing.keys import key_of
from sglpool.routing.pickerconfig import (
    HEADER_DESTINATION,
    HEADER_KEY_CONVERSATION,
    HEADER_KEY_SESSION,
    HEADER_MEMO,
    HEADER_PICK,
)
from sglpool.routing.types import ConversationKey

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 64 * 1024
MAX_CONNECTIONS = 4096

_NO_PICK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_BAD = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"

Answer = Picked | Refused | None
_KNOWN = (Picked, Refused)


class Decider(Protocol):
    """Who knows where requests go."""

    def decide(self, key: ConversationKey | None, headers: Mapping[str, str]) -> Answer | Awaitable[Answer]:
        """The answer, at once or, where the shared store has to be asked, a little later."""
        ...


class BadRequest(Exception):
    """A question that cannot be read; its argument is what is answered before hanging up."""


class AuthzProtocol(asyncio.Protocol):
    """One connection of Envoy's."""

    __slots__ = ("_buffer", "_connections", "_decider", "_hangup", "_metrics", "_skip_bytes", "_task", "_transport")

    def __init__(self, decider: Decider, metrics: Metrics, connections: set[AuthzProtocol]) -> None:
        self._decider = decider
        self._metrics = metrics
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._skip_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._hangup: select.poll | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, unless there are too many."""
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._hangup = _hangup_of(self._transport)
        if len(self._connections) >= MAX_CONNECTIONS:
            self._transport.abort()
        else:
            self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it. A reservation that its last answer made lapses by itself."""
        del exc
        self._connections.discard(self)
        self._transport = None
        self._hangup = None

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Answer every whole question in what has come."""
        began_s = time.perf_counter()
        if self._hangup is not None and self._hangup.poll(0):
            # Envoy waited long enough and has gone: a picker that stood still must not place, one after the other,
            # all the requests that Envoy placed meanwhile. They would look like a crowd, and move conversations.
            self._metrics.late_questions.inc()
            self._buffer = b""
            return
        self._buffer = self._buffer + data if self._buffer else data
        if self._task is None:
            self._serve(began_s)

    def _serve(self, began_s: float) -> None:
        try:
            while self._task is None and self._buffer and (question := self._next()) is not None:
                found = self._decider.decide(key_of(question), question)
                if found is None or isinstance(found, _KNOWN):
                    self._answer(found, question, began_s)
                else:
                    self._task = asyncio.ensure_future(self._later(found, question, began_s))
        except BadRequest as problem:
            self._metrics.bad_requests.inc()
            self._buffer = b""
            if self._transport is not None:
                self._transport.write(problem.args[0])
                self._transport.close()

    async def _later(self, found: Awaitable[Answer], question: Mapping[str, str], began_s: float) -> None:
        try:
            answer = await found
        finally:
            self._task = None
        self._answer(answer, question, began_s)
        if self._buffer:
            self._serve(time.perf_counter())

    def _answer(self, answer: Answer, question: Mapping[str, str], began_s: float) -> None:
        if self._transport is not None:
            self._transport.write(render(answer, memo_key(question)))
        self._metrics.decision_s.observe(time.perf_counter() - began_s)

    def _next(self) -> dict[str, str] | None:
        """Headers of the next question, None while it is not whole."""
        buffer = self._buffer
        if self._skip_bytes:
            skipped = min(self._skip_bytes, len(buffer))
            self._skip_bytes -= skipped
            buffer = self._buffer = buffer[skipped:]
            if self._skip_bytes:
                return None
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(buffer) > MAX_HEAD_BYTES:
                raise BadRequest(_TOO_LARGE)
            return None
        if end > MAX_HEAD_BYTES:
            raise BadRequest(_TOO_LARGE)
        self._buffer = buffer[end + 4 :]
        headers = parse_head(buffer[:end])
        self._skip_bytes = _body_bytes(headers)
        return headers


def _hangup_of(transport: asyncio.Transport) -> select.poll | None:
    """What tells at once whether the other end has gone; the event loop says so only after all that was sent."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return None
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLRDHUP)
    return poll


def parse_head(head: bytes) -> dict[str, str]:
    """Headers of a request's head by lower-case name; the last of a name counts.

    Raises:
        BadRequest: it is no head of HTTP/1.1.
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    if not first.endswith(" HTTP/1.1"):
        raise BadRequest(_BAD)
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise BadRequest(_BAD)
        headers[name.lower()] = value.strip()
    return headers


def _body_bytes(headers: Mapping[str, str]) -> int:
    if "transfer-encoding" in headers:
        raise BadRequest(_BAD)
    text = headers.get("content-length", "0")
    if not text.isdecimal() or not text.isascii() or len(text) > 9:
        raise BadRequest(_BAD)
    length = int(text)
    if length > MAX_BODY_BYTES:
        raise BadRequest(_TOO_LARGE)
    return length


def memo_key(question: Mapping[str, str]) -> str:
    """What Envoy's script calls the conversation, empty if nothing names it."""
    session, conversation = question.get(HEADER_KEY_SESSION, ""), question.get(HEADER_KEY_CONVERSATION)
    return f"{session}\t{conversation}" if conversation else session


def render(answer: Answer, memo: str = "") -> bytes:
    """The bytes of an answer. Never 5xx: Envoy would let the request through and count an error.

    Args:
        answer: the answer.
        memo: the conversation as Envoy's script named it: it gets it back with the destination, to remember both.
    """
    if answer is None:
        return _NO_PICK
    if isinstance(answer, Picked):
        told = f"{HEADER_MEMO}: {answer.destination} {memo}\r\n" if memo else ""
        # A key is as the client wrote it, byte for byte.
        return (
            f"HTTP/1.1 200 OK\r\n{HEADER_DESTINATION}: {answer.destination}\r\n"
            f"{HEADER_PICK}: {answer.pick_id}\r\n{told}content-length: 0\r\n\r\n"
        ).encode("latin-1")
    wait_s = max(1, math.ceil(answer.retry_after_s))
    return f"HTTP/1.1 429 Too Many Requests\r\nretry-after: {wait_s}\r\ncontent-length: 0\r\n\r\n".encode("ascii")


class AuthzServer:
    """The socket. Open it only when the picker knows its replicas: until then Envoy decides by itself."""

    def __init__(self, path: Path, decider: Decider, metrics: Metrics) -> None:
        self._path = path
        self._connections: set[AuthzProtocol] = set()
        self._make: Callable[[], AuthzProtocol] = lambda: AuthzProtocol(decider, metrics, self._connections)
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        """Listen, in place of a picker that left its socket behind."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        self._server = await asyncio.get_running_loop().create_unix_server(self._make, str(self._path), backlog=1024)
        # Envoy may run as another user of the same group.
        self._path.chmod(0o660)

    async def stop(self) -> None:
        """Take no more questions."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self._connections):
            connection.close()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
