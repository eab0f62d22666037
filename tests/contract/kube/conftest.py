"""A server that answers from a script, and a client for it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from contract.kube.bad_server import BadServer, Opened, kubeconfig_for
from sglpool.kube import KubeClient


@pytest.fixture
async def server() -> AsyncIterator[BadServer]:
    async with BadServer().serve() as server:
        yield server


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
