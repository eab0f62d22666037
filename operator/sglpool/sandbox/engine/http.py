"""One HTTP exchange over ASGI, and a router: what the endpoints of the simulated engine need and no more.

uvicorn parses and writes HTTP, as it does for SGLang. Not here: any endpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

from sglpool.sandbox.engine.errors import ApiError, ClientGone, invalid

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MAX_BODY_BYTES = 64 * 1024 * 1024
JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
_EVENT_STREAM = [(b"content-type", b"text/event-stream; charset=utf-8")]


class Exchange:
    """A request and its response."""

    __slots__ = (
        "_gone",
        "_receive",
        "_send",
        "_watcher",
        "gone",
        "headers",
        "method",
        "path",
        "scope",
        "status",
        "tail",
    )

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Wrap what the server calls an application with."""
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.tail = ""
        """What follows the route's path, for routes that end in a slash."""
        self.status = 0
        """Status sent; 0 before that."""
        self.gone = False
        """The client has closed the connection, as far as the watcher knows."""
        self._receive = receive
        self._send = send
        self._watcher: asyncio.Task[None] | None = None
        self._gone: Callable[[], None] | None = None

    def query(self) -> dict[str, str]:
        """Query parameters; the last of equal names wins."""
        pairs = parse_qs(self.scope["query_string"].decode("latin-1"))
        return {name: values[-1] for name, values in pairs.items()}

    async def body(self) -> bytes:
        """The whole request body.

        Raises:
            ApiError: 413, it is larger than any real request.
            ClientGone: it was cut short.
        """
        parts: list[bytes] = []
        size_bytes = 0
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                raise ClientGone
            size_bytes += len(message["body"])
            if size_bytes > MAX_BODY_BYTES:
                text = f"The request body is larger than {MAX_BODY_BYTES} bytes."
                raise ApiError(413, text, type_="Request Entity Too Large")
            parts.append(message["body"])
            if not message.get("more_body"):
                return b"".join(parts)

    async def json(self) -> dict[str, Any]:
        """The request body as a JSON object.

        Raises:
            ApiError: it is none.
            ClientGone: it was cut short.
        """
        media_type = self.headers.get(b"content-type", b"").split(b";", 1)[0].strip().lower()
        if media_type != JSON:
            raise ApiError(400, "Unsupported Media Type: Only 'application/json' is allowed", type_="Bad Request")
        data = await self.body()
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise invalid("0", f"JSON decode error: {error}", "json_invalid") from None
        if not isinstance(value, dict):
            raise invalid("0", "Input should be a valid dictionary", "model_attributes_type")
        return value

    def watch(self, gone: Callable[[], None] | None = None) -> None:
        """From now on notice a client that leaves: set `gone` and call the function."""
        self._gone = gone
        if self._watcher is None:
            self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        if self._gone is not None:
            self._gone()

    def close(self) -> None:
        """Stop watching; the exchange is over."""
        if self._watcher is not None:
            self._watcher.cancel()

    async def reply(
        self, status: int, data: bytes = b"", media_type: bytes = JSON, headers: list[tuple[bytes, bytes]] | None = None
    ) -> None:
        """Send a whole response."""
        self.status = status
        head = [(b"content-length", b"%d" % len(data)), *(headers or [])]
        if data:
            head.append((b"content-type", media_type))
        await self._send({"type": "http.response.start", "status": status, "headers": head})
        await self._send({"type": "http.response.body", "body": data})

    async def reply_json(self, value: object, status: int = 200) -> None:
        """Send a whole JSON response."""
        await self.reply(status, encode(value))

    async def start_events(self) -> None:
        """Send the head of a server-sent event stream."""
        self.status = 200
        await self._send({"type": "http.response.start", "status": 200, "headers": _EVENT_STREAM})

    async def write(self, data: bytes) -> None:
        """Send one part of a stream."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, data: bytes = b"") -> None:
        """Send the last part of a stream."""
        await self._send({"type": "http.response.body", "body": data, "more_body": False})


def encode(value: object) -> bytes:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def event(value: object) -> bytes:
    """One server-sent event with JSON data."""
    return b"data: " + encode(value) + b"\n\n"


Handler = Callable[[Exchange], Awaitable[None]]


class Route:
    """One path: its methods, its handler and whether it is an admin call."""

    __slots__ = ("admin", "handler", "methods", "path")

    def __init__(self, path: str, handler: Handler, methods: tuple[str, ...], admin: bool) -> None:
        """Serve `path`; one that ends in a slash serves what is below it."""
        self.path = path
        self.handler = handler
        self.methods = methods
        self.admin = admin


class Router:
    """Finds the route of a path."""

    def __init__(self) -> None:
        """Know no route."""
        self._routes: dict[str, Route] = {}
        self._below: list[Route] = []

    def add(self, paths: str, handler: Handler, *methods: str, admin: bool = False) -> None:
        """Serve the paths (parted by blanks) with a handler."""
        for path in paths.split():
            route = Route(path, handler, methods, admin)
            self._routes[path] = route
            if path.endswith("/"):
                self._below.append(route)

    def find(self, exchange: Exchange) -> Route | None:
        """The route of an exchange; sets its `tail`."""
        route = self._routes.get(exchange.path)
        if route is not None and not route.path.endswith("/"):
            return route
        for route in self._below:
            if exchange.path.startswith(route.path) and len(exchange.path) > len(route.path):
                exchange.tail = exchange.path[len(route.path) :]
                return route
        return None


async def cancel(task: asyncio.Task[Any]) -> None:
    """End a task of ours and wait for its end."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
