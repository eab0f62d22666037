"""Engines, an API server with their pods, a real Envoy and a real picker for each test."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from typing import Any

import pytest

from support.envoy_peers import Answer, Peers
from support.envoy_process import PATIENCE_S, EnvoyProcess, Reply
from support.picker_process import PickerProcess, PodApi, PolledEngine, engine_pod, free_port, router_pod

_networks = itertools.count(1)
CHAT = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
USAGE = {"prompt_tokens": 1000, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 900}}


def event(data: object) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps(data).encode() + b"\n\n"


STREAM = (
    event({"choices": [{"delta": {"content": "a"}, "finish_reason": None}]}),
    event({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}),
    event({"choices": [], "usage": USAGE}),
    b"data: [DONE]\n\n",
)
SSE = {"content-type": "text/event-stream"}


class Stream:
    """A response under way."""

    def __init__(self, connection: HTTPConnection) -> None:
        self._connection = connection
        self._response = connection.getresponse()
        self.status = self._response.status
        self.read = self._response.read
        self.read1 = self._response.read1

    def close(self) -> None:
        """Hang up."""
        self._response.close()
        self._connection.close()


class Router:
    """One router pod: Envoy and picker."""

    def __init__(self, envoy: EnvoyProcess, picker: PickerProcess, stack: ExitStack) -> None:
        self._stack = stack
        self.envoy = envoy
        self.picker = picker

    def ask(self, session: str = "s", body: object = None, **headers: str) -> Reply:
        """One request of a conversation."""
        own = {"x-sglpool-session": session, **{name.replace("_", "-"): value for name, value in headers.items()}}
        return self.envoy.request(body=CHAT if body is None else body, headers=own)

    def open_stream(self, session: str) -> Stream:
        """A request whose answer is read later; closing it hangs up."""
        connection = self.envoy.connect()
        headers = {"x-sglpool-session": session}
        connection.request("POST", "/v1/chat/completions", json.dumps(CHAT).encode(), headers)
        return self._stack.enter_context(closing(Stream(connection)))

    def await_engines(self, *addresses: str) -> None:
        """Wait until Envoy may send requests there."""
        for address in addresses:
            self.envoy.wait_host(address, "healthy")


class Pool:
    """Engines with their pods, and routers."""

    def __init__(self, peers: Peers, stack: ExitStack, engines: int) -> None:
        self.peers = peers
        self._stack = stack
        self._network = next(_networks)
        self.port = free_port(self.ip(1))
        self.api = PodApi(peers)
        peers._servers.append(self.api)
        peers.run(self.api.open())
        self.engines = [self.add_engine() for _ in range(engines)]

    def ip(self, number: int) -> str:
        """An address of this test's own."""
        return f"127.77.{self._network}.{number}"

    def add_engine(self, uid: str | None = None, **changes: Any) -> PolledEngine:
        """An engine and its pod."""
        number = len(self.api.pods) + 1
        engine = PolledEngine(self.peers, self.ip(number), self.port)
        engine.answer = Answer(headers=SSE, chunks=STREAM)
        self.peers._servers.append(engine)
        self.peers.run(engine.open())
        self.api.put(engine_pod(uid or f"e{number}", engine.ip, **changes))
        return engine

    def router(
        self,
        uid: str = "r1",
        *,
        api_keys: dict[str, str] | None = None,
        picker_timeout_s: float = PATIENCE_S,
        **settings: Any,
    ) -> Router:
        """A router, once it knows its engines."""
        self.api.put(router_pod(uid, settings.get("ip", "127.0.0.1")))
        envoy = self._stack.enter_context(EnvoyProcess(api_keys=api_keys, picker_timeout_s=picker_timeout_s))
        picker = self._stack.enter_context(PickerProcess(envoy, self.api, uid=uid, engine_port=self.port, **settings))
        router = Router(envoy, picker, self._stack)
        router.await_engines(*(engine.address for engine in self.engines))
        return router

    def counts(self) -> list[int]:
        """Requests that each engine has seen."""
        return [len(engine.seen) for engine in self.engines]

    def served(self, ask: Callable[[], object]) -> int:
        """Which engine served what `ask` does."""
        before = self.counts()
        ask()
        (index,) = [at for at, (old, new) in enumerate(zip(before, self.counts(), strict=True)) if new > old]
        return index


@pytest.fixture
def peers() -> Iterator[Peers]:
    with Peers() as peers:
        yield peers


@pytest.fixture
def make_pool(peers: Peers) -> Iterator[Callable[[int], Pool]]:
    with ExitStack() as stack:
        yield lambda engines: Pool(peers, stack, engines)
