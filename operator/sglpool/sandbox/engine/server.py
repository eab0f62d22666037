"""The simulated engine's HTTP server: uvicorn, which SGLang runs on too, with an application of ours.

`serve` opens the port after the load and returns the exit code. Not here: the endpoints themselves.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import signal
import socket
import sys

import uvicorn

from sglpool.enginemodel.engine import Engine
from sglpool.sandbox.engine.admin import Admin
from sglpool.sandbox.engine.anthropic_api import Anthropic
from sglpool.sandbox.engine.clock import ModelClock
from sglpool.sandbox.engine.driver import Driver
from sglpool.sandbox.engine.errors import ApiError, ClientGone
from sglpool.sandbox.engine.generation import Generation
from sglpool.sandbox.engine.http import Exchange, Message, Receive, Route, Router, Send, cancel, encode
from sglpool.sandbox.engine.lifecycle import Lifecycle
from sglpool.sandbox.engine.openai_api import OpenAI
from sglpool.sandbox.engine.responses_api import Responses
from sglpool.sandbox.engine.spec import Spec
from sglpool.sandbox.engine.telemetry import Telemetry

_KEEP_ALIVE_S = 5
_BACKLOG = 2048
_OPEN_PATHS = ("/health", "/ready", "/metrics")


async def serve(spec: Spec) -> int:
    """Serve until the end; returns the exit code."""
    try:
        sock = _bind(spec.host, spec.port)
    except OSError as error:
        print(f"sglpool: cannot listen on {spec.host}:{spec.port}: {error.strerror or error}.", file=sys.stderr)
        return 1
    engine = Engine(spec.engine)
    clock = ModelClock(spec.machine.speed)
    telemetry = Telemetry(spec, engine, started_s=clock.now_s())
    driver = Driver(engine, clock, telemetry)
    generation = Generation(spec, driver)
    server = _uvicorn(spec)
    lifecycle = Lifecycle(spec, clock, generation, lambda: _close_port(server, sock))
    router = Router()
    Admin(spec, clock, driver, telemetry, lifecycle).add_to(router)
    _add_generation(router, spec, generation)
    server.config.loaded_app = App(spec, router, telemetry)
    return await _run(server, sock, driver, lifecycle)


def _add_generation(router: Router, spec: Spec, generation: Generation) -> None:
    openai, anthropic, responses = OpenAI(spec, generation), Anthropic(spec, generation), Responses(spec, generation)
    router.add("/v1/chat/completions", openai.chat, "POST")
    router.add("/v1/completions", openai.completion, "POST")
    router.add("/v1/messages", anthropic.messages, "POST")
    router.add("/v1/messages/count_tokens", anthropic.count_tokens, "POST")
    router.add("/v1/responses", responses.create, "POST")
    router.add("/v1/responses/", responses.fetch, "GET")


async def _run(server: uvicorn.Server, sock: socket.socket, driver: Driver, lifecycle: Lifecycle) -> int:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, lifecycle.terminate)
    loop.add_signal_handler(signal.SIGINT, lifecycle.ended.set)
    await server.startup(sockets=[sock])
    lifecycle.log(f"Uvicorn running on http://{server.config.host}:{server.config.port} (Press CTRL+C to quit)")
    ended = loop.create_task(lifecycle.ended.wait())
    works = [loop.create_task(work) for work in (server.main_loop(), driver.run(), lifecycle.watch_faults())]
    works.append(loop.create_task(lifecycle.warm_up()))
    try:
        await _watch(ended, works)
        if lifecycle.forced:
            # Waits for clients to close their connections, however long that takes.
            await server.shutdown(sockets=[sock])
        return 0
    finally:
        # Whoever is still connected is cut off, as by any end of a process; that is no error of the application.
        logging.getLogger("uvicorn.error").disabled = True
        for task in (*works, ended):
            await cancel(task)


async def _watch(ended: asyncio.Task[bool], works: list[asyncio.Task[None]]) -> None:
    """Wait for the end; a work that fails is an error of ours and must not go unseen."""
    pending: set[asyncio.Task[object]] = {ended, *works}
    while not ended.done():
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def _close_port(server: uvicorn.Server, sock: socket.socket) -> None:
    for listener in server.servers:
        listener.close()
    sock.close()


class _Unlisted(logging.Filter):
    """Leaves paths out of the access log."""

    def __init__(self, prefixes: tuple[str, ...]) -> None:
        super().__init__()
        self._prefixes = prefixes

    def filter(self, record: logging.LogRecord) -> bool:
        args = record.args
        return not (isinstance(args, tuple) and len(args) > 2 and str(args[2]).startswith(self._prefixes))


def _uvicorn(spec: Spec) -> uvicorn.Server:
    level = str(spec.args.get("log_level_http") or spec.args.get("log_level") or "info").lower()
    _logging(level, tuple(spec.args.get("uvicorn_access_log_exclude_prefixes") or ()))
    config = uvicorn.Config(
        _unset,
        host=spec.host,
        port=spec.port,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=level in ("debug", "info"),
        timeout_keep_alive=int(os.environ.get("SGLANG_TIMEOUT_KEEP_ALIVE") or _KEEP_ALIVE_S),
        backlog=_BACKLOG,
        proxy_headers=False,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    return server


def _logging(level: str, prefixes: tuple[str, ...]) -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("[%(asctime)s] %(levelname)s:     %(message)s", "%Y-%m-%d %H:%M:%S"))
    access = logging.getLogger("uvicorn.access")
    access.propagate = False
    access.setLevel(level.upper() if level in ("debug", "info", "warning", "error", "critical") else "INFO")
    access.handlers = [handler]
    if prefixes:
        handler.addFilter(_Unlisted(prefixes))


async def _unset(scope: Message, receive: Receive, send: Send) -> None:
    """Stands where the application goes."""


class App:
    """The ASGI application: keys, routes, errors, and the counting of calls."""

    def __init__(self, spec: Spec, router: Router, telemetry: Telemetry) -> None:
        """Serve the routes of `router`."""
        self._api_key = spec.api_key
        self._admin_api_key = spec.admin_api_key
        self._router = router
        self._telemetry = telemetry

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send)
        route = self._router.find(exchange)
        self._telemetry.on_http(exchange.path, exchange.method)
        try:
            await self._answer(exchange, route)
        except ApiError as error:
            if not exchange.status:
                # Of a body that is too large the rest is still to come; nobody will read it.
                close = [(b"connection", b"close")] if error.status == 413 else None
                await exchange.reply(error.status, encode(error.body()), headers=close)
        except ClientGone:
            # Nobody reads it, but the server must be told that the exchange is over.
            if not exchange.status:
                await exchange.reply(499)
        finally:
            exchange.close()
            self._telemetry.on_http_done(exchange.path, exchange.method, exchange.status or 500)

    async def _answer(self, exchange: Exchange, route: Route | None) -> None:
        if not self._allowed(exchange, route):
            await exchange.reply_json({"error": "Unauthorized"}, 401)
        elif route is None:
            await exchange.reply_json({"detail": "Not Found"}, 404)
        elif exchange.method not in route.methods:
            allow = [(b"allow", ", ".join(route.methods).encode())]
            await exchange.reply(405, b'{"detail":"Method Not Allowed"}', headers=allow)
        else:
            await route.handler(exchange)

    def _allowed(self, exchange: Exchange, route: Route | None) -> bool:
        if exchange.method == "OPTIONS" or exchange.path.startswith(_OPEN_PATHS):
            return True
        key = self._api_key
        if route is not None and route.admin:
            key = self._admin_api_key or self._api_key
        return key is None or any(hmac.compare_digest(given, key.encode()) for given in _keys(exchange))


def _keys(exchange: Exchange) -> list[bytes]:
    """Keys that a request shows."""
    kind, _, token = exchange.headers.get(b"authorization", b"").partition(b" ")
    found = [token] if kind.lower() == b"bearer" else []
    other = exchange.headers.get(b"x-api-key")
    return [*found, other] if other else found
