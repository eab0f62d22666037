"""A router that starts asks others for their homes, whoever of them knows some."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from prometheus_client import CollectorRegistry

from sglpool.picker.endpoint import MAX_SIBLINGS, ask_siblings, build_app, serve
from sglpool.picker.ledger import Ledger
from sglpool.picker.views import Views
from sglpool.routing.state import RoutingState
from unit.picker.parts import key, make_fleet, make_ledger, picked

Sibling = Callable[..., Awaitable[str]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
async def sibling() -> AsyncIterator[Sibling]:
    """Start a router's endpoint; it knows the conversations of these numbers."""
    async with AsyncExitStack() as stack:

        async def start(*numbers: int) -> str:
            ledger: Ledger = make_ledger()
            for number in numbers:
                picked(ledger.pick(key(number), {}))
            fleet, _, _ = make_fleet()
            views = Views(pool="p", router="r", ledger=ledger, fleet=fleet, has_store=False)
            app = build_app(views=views, registry=CollectorRegistry(), state=ledger.state, idle_turn_s=lambda: 0.0)
            port = free_port()
            runner = await serve(app, "127.0.0.1", port)
            stack.push_async_callback(runner.cleanup)
            return f"127.0.0.1:{port}"

        yield start


async def known(*addresses: str) -> RoutingState:
    state = make_ledger().state
    assert await ask_siblings(addresses, state, time.time) == len(state.conversations)
    return state


async def test_one_that_starts_as_well_is_not_the_last_that_is_asked(sibling: Sibling):
    state = await known(f"127.0.0.1:{free_port()}", await sibling(), await sibling(1, 2))
    assert set(state.conversations) == {key(1), key(2)}


async def test_what_several_know_adds_up(sibling: Sibling):
    state = await known(await sibling(1, 2), await sibling(2, 3))
    assert set(state.conversations) == {key(1), key(2), key(3)}


async def test_only_so_many_are_asked(sibling: Sibling):
    nobody = [f"127.0.0.1:{free_port()}" for _ in range(MAX_SIBLINGS)]
    state = await known(*nobody, await sibling(1))
    assert not state.conversations
