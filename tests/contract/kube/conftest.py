"""A server that answers from a script, and a client for it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from contract.kube.bad_server import BadServer, Opened, kubeconfig_for
from sglpool.kube import KubeClient


@pytest.fixture
async def server() -> AsyncIterator[BadServer]:
    bad = BadServer()
    app = web.Application()
    app.router.add_route("*", "/{any:.*}", bad.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    bad.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield bad
    await runner.cleanup()


@pytest.fixture
async def opened(server: BadServer, tmp_path: Any) -> AsyncIterator[Opened]:
    pauses: list[float] = []
    requests: list[tuple[str, str, int]] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    def on_request(verb: str, resource: Any, code: int, seconds: float) -> None:
        assert seconds >= 0
        requests.append((verb, resource.plural, code))

    config = kubeconfig_for(tmp_path / "config", server.url)
    async with KubeClient.connect(config, on_request=on_request, sleep=sleep) as kube:
        yield Opened(kube, pauses, requests)
