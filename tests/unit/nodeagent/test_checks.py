"""Probes that look at real sockets: what counts as an answer, and what the reader of the event is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web

from sglpool.sandbox.nodeagent.checks import Target, Unsupported, check
from unit.nodeagent.fakes import ExecResult

HOST = "127.0.0.1"


class _NoContainer:
    """Of a container, only commands that time out."""

    id = image = image_id = ""
    pid = 0
    started_at = datetime.now(UTC)

    async def wait(self) -> Any:
        raise NotImplementedError

    def signal(self, number: int) -> None:
        raise NotImplementedError

    kill = signal  # type: ignore[assignment]

    async def exec(self, command: Any, *, timeout_s: float) -> ExecResult:
        return ExecResult({"fine": 0, "broken": 1}.get(command[0]), "said so")


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """A server that answers with the status in the path, redirects, hangs, and mirrors headers."""

    async def status(request: web.Request) -> web.Response:
        return web.Response(status=int(request.match_info["code"]))

    async def redirect(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": request.query["to"]})

    async def hang(request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    async def mirror(request: web.Request) -> web.Response:
        good = request.headers.get("X-Token") == "t" and request.headers["User-Agent"].startswith("kube-probe/")
        return web.Response(status=200 if good else 400)

    app = web.Application()
    app.router.add_get("/status/{code}", status)
    app.router.add_get("/redirect", redirect)
    app.router.add_get("/hang", hang)
    app.router.add_get("/mirror", mirror)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, HOST, 0)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()


def _target(port: int = 1) -> Target:
    spec = {"name": "main", "ports": [{"name": "http", "containerPort": port}]}
    return Target(_NoContainer(), spec, HOST)


@pytest.mark.parametrize(
    ("path", "ok", "output"),
    [
        ("/status/200", True, ""),
        ("/status/399", True, ""),
        ("/status/400", False, "HTTP probe failed with statuscode: 400"),
        ("status/503", False, "HTTP probe failed with statuscode: 503"),
        ("/redirect?to=/status/200", True, ""),
        ("/redirect?to=/status/503", False, "HTTP probe failed with statuscode: 503"),
        ("/redirect?to=http://elsewhere.invalid/", True, ""),
    ],
)
async def test_an_http_answer_counts_by_its_status(port: int, path: str, ok: bool, output: str) -> None:
    outcome = await check({"httpGet": {"path": path, "port": "http"}}, _target(port), timeout_s=10)
    assert (outcome.ok, outcome.output) == (ok, output)


async def test_endless_redirects_end(port: int) -> None:
    outcome = await check({"httpGet": {"path": "/redirect?to=/redirect", "port": port}}, _target(), timeout_s=10)
    assert not outcome.ok


async def test_headers_are_sent(port: int) -> None:
    request = {"path": "/mirror", "port": port, "httpHeaders": [{"name": "X-Token", "value": "t"}]}
    assert (await check({"httpGet": request}, _target(), timeout_s=10)).ok


async def test_a_server_that_hangs_has_failed(port: int) -> None:
    outcome = await check({"httpGet": {"path": "/hang", "port": port}}, _target(), timeout_s=0.2)
    words = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
    assert outcome.output == f'Get "http://{HOST}:{port}/hang": {words}'


async def test_nobody_listens(unused_tcp_port: int) -> None:
    http = await check({"httpGet": {"path": "/", "port": unused_tcp_port}}, _target(), timeout_s=10)
    refused = f"dial tcp {HOST}:{unused_tcp_port}: connect: connection refused"
    assert http.output == f'Get "http://{HOST}:{unused_tcp_port}/": {refused}'
    tcp = await check({"tcpSocket": {"port": unused_tcp_port}}, _target(), timeout_s=10)
    assert tcp.output == refused


async def test_somebody_listens(port: int) -> None:
    assert (await check({"tcpSocket": {"port": "http"}}, _target(port), timeout_s=10)).ok


@pytest.mark.parametrize(
    ("command", "ok", "output"),
    [
        ("fine", True, "said so"),
        ("broken", False, "said so"),
        ("slow", False, 'command timed out: "slow" timed out after 2s'),
    ],
)
async def test_a_command_counts_by_its_exit_code(command: str, ok: bool, output: str) -> None:
    outcome = await check({"exec": {"command": [command]}}, _target(), timeout_s=2)
    assert (outcome.ok, outcome.output) == (ok, output)


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ({"httpGet": {"path": "/", "port": "metrics"}}, 'container main has no port named "metrics"'),
        ({"grpc": {"port": 1}}, "no grpc probes"),
    ],
)
async def test_what_cannot_be_looked_at_is_said(action: dict[str, Any], words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        await check(action, _target(), timeout_s=1)
