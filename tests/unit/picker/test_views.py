"""What a router shows of itself to the operator."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from prometheus_client import generate_latest

from sglpool.picker.endpoint import rendered
from sglpool.picker.metrics import Metrics
from sglpool.picker.views import IDLE_S, Gauges, Views, warm_tokens
from sglpool.routing.state import RoutingState
from unit.picker.parts import Clock, key, make_fleet, pod


def test_what_conversations_would_lose_is_counted_where_replicas_are_to_become_empty():
    state = RoutingState()
    for number, (home, tokens) in enumerate([("a", 100), ("a", 20), ("b", 3000), (None, 7)]):
        conversation = state.touch(key(number), 0.0)
        state.set_home(conversation, home)
        conversation.ctx_tokens = tokens
    conversations = state.conversations.values()
    assert warm_tokens(conversations, {"a"}) == {"a": 120}
    assert warm_tokens(conversations, {"b", "c"}) == {"b": 3000, "c": 0}
    assert warm_tokens(conversations, set()) == {}


def make_views(replicas: int) -> tuple[Views, Any, Any]:
    """Replicas that have nothing to do, and what shows them."""
    fleet, ledger, _ = make_fleet()
    for number in range(replicas):
        fleet.put(pod(f"u{number}", f"10.0.0.{number + 1}"))
    for member in fleet.members.values():
        member.engine_busy = False
    return Views(pool="p", router="r", ledger=ledger, fleet=fleet, has_store=False), fleet, ledger


def idle(views: Views) -> set[str]:
    return {each["uid"] for each in views.state()["replicas"] if each["idle"]}


def test_a_replica_is_idle_without_requests_and_without_conversations_that_may_come_back():
    views, fleet, ledger = make_views(5)
    clock = ledger.clock_s
    assert isinstance(clock, Clock)
    for number, age_s in ((1, IDLE_S + 1), (2, IDLE_S - 1), (3, IDLE_S + 1)):
        conversation = ledger.state.touch(key(number), clock.now_s - age_s)
        ledger.state.set_home(conversation, f"u{number}")
    ledger.state.conversations.move_to_end(key(2))
    fleet.members["u3"].engine_busy = True
    fleet.members["u4"].replica.own_in_flight = 1
    assert idle(views) == {"u0", "u1"}
    clock.now_s += 2
    assert idle(views) == {"u0", "u1", "u2"}


async def test_metrics_come_piece_by_piece_and_are_the_same_as_at_once():
    views, _, _ = make_views(50)
    metrics = Metrics()
    metrics.registry.register(Gauges(views))
    turns = itertools.count()

    async def turn() -> None:
        while True:
            next(turns)
            await asyncio.sleep(0)

    other = asyncio.ensure_future(turn())
    text = await rendered(metrics.registry)
    other.cancel()
    # Its own CPU and memory go on.
    whole = generate_latest(metrics.registry)
    assert [line for line in text.splitlines() if not line.startswith(b"process_")] == [
        line for line in whole.splitlines() if not line.startswith(b"process_")
    ]
    assert b'sglpool_router_load{gpu="B200",pod="pod-u7"} 0.0' in text
    assert next(turns) >= len(list(metrics.registry.collect())), "what else there is has its turn between two metrics"
