"""A server that answers badly on purpose, and a kubeconfig for it."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import yaml
from aiohttp import web

from sglpool.kube import KubeClient

CONFIGMAP = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "scripts", "namespace": "prod"},
    "data": {"launch.sh": "exec sglang"},
}
POD = {"metadata": {"name": "p"}}


@dataclass
class Seen:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class BadServer:
    """Answers from a script; the last entry repeats. An entry is a response, or a function that makes one."""

    url: str = ""
    script: list[Any] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        self.seen.append(
            Seen(
                request.method,
                request.path,
                dict(request.query),
                dict(request.headers),
                json.loads(text) if text else None,
            )
        )
        entry = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        return await entry(request)

    @asynccontextmanager
    async def serve(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[BadServer]:
        app = web.Application()
        app.router.add_route("*", "/{any:.*}", self.answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
        yield self
        await runner.cleanup()


Answer = Callable[[web.Request], Any]


def ok(body: Any) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(body)

    return answer


def status(code: int, message: str = "no", *, reason: str = "", headers: Any = None, **details: Any) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        body = {"kind": "Status", "code": code, "message": message, "reason": reason, "details": details}
        return web.json_response(body, status=code, headers=headers)

    return answer


def text(code: int, body: str) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=code, text=body)

    return answer


async def reset(request: web.Request) -> web.Response:
    """Drops the connection without a word."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def half(request: web.Request) -> web.StreamResponse:
    """Promises more bytes than it sends."""
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"kind": "Po')
    assert request.transport is not None
    request.transport.abort()
    return response


async def silent(_: web.Request) -> web.Response:
    await asyncio.Event().wait()
    return web.Response()


def kubeconfig_for(path: Any, url: str, **user: Any) -> str:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": user or {"token": "secret-token"}}],
    }
    path.write_text(yaml.safe_dump(config))
    return str(path)


@dataclass
class Opened:
    kube: KubeClient
    pauses: list[float]
    requests: list[tuple[str, str, int]]
