"""Engines, a stand-in picker and a real Envoy for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from support.envoy_peers import Engine, Peers, Picker
from support.envoy_process import EnvoyProcess


class Router:
    """Engines `a`, `b`, ..., a picker that chooses the first, then the second, and Envoy."""

    def __init__(self, peers: Peers, envoy: EnvoyProcess, picker: Picker, engines: list[Engine]) -> None:
        self.peers = peers
        self.envoy = envoy
        self.picker = picker
        self.engines = engines
        self.pick(*engines)

    @property
    def a(self) -> Engine:
        """The first engine."""
        return self.engines[0]

    @property
    def b(self) -> Engine:
        """The second."""
        return self.engines[1]

    def pick(self, *engines: Engine) -> None:
        """What the picker answers from now on."""
        self.picker.destination = ",".join(engine.address for engine in engines[:2])

    def counts(self) -> list[int]:
        """How many requests each engine has seen."""
        return [len(engine.seen) for engine in self.engines]


@pytest.fixture
def peers() -> Iterator[Peers]:
    with Peers() as peers:
        yield peers


@pytest.fixture
def make_router(peers: Peers) -> Iterator[Callable[..., Router]]:
    with ExitStack() as stack:

        def make(engines: int = 2, *, health: tuple[str, ...] = (), **options: Any) -> Router:
            own = [peers.engine() for _ in range(engines)]
            states = {engine.address: state for engine, state in zip(own, health, strict=False)}
            addresses = [engine.address for engine in own]
            envoy = stack.enter_context(EnvoyProcess(engines=addresses, health=states, **options))
            return Router(peers, envoy, peers.picker(envoy.folder), own)

        yield make


@pytest.fixture
def router(make_router: Callable[..., Router]) -> Router:
    return make_router()
