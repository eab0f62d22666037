"""Several routers share homes through a real store; without it each goes on with what it knows."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from sglpool.picker.decider import StoredDecider
from sglpool.picker.exchange import MAX_TAKEN, MAX_UNREAD
from sglpool.picker.ledger import Entry, Ledger, Picked
from sglpool.picker.metrics import Metrics
from sglpool.picker.store import ValkeyStore, connect
from sglpool.routing.types import ConversationKey, PolicyConfig, Replica
from support.store_process import StoreProcess

Make = Callable[..., Awaitable["RouterWithStore"]]
PATIENT = {"read_limit_s": 3.0, "write_limit_s": 3.0}
"""A busy machine is not a store that is away."""


class RouterWithStore:
    """Ledger and store of one router, without a process around them."""

    def __init__(self, name: str, sibling: str, url: str, limits: dict[str, float]) -> None:
        self.metrics = Metrics()
        self.ledger = Ledger(PolicyConfig(), self.metrics, random.Random(1), time.time)
        for uid in ("e1", "e2", "e3"):
            self.ledger.put(Replica(uid=uid, address=f"{uid}:1"))
        self.store = ValkeyStore(
            connect(url, None),
            pool_uid="p",
            router=name,
            siblings=lambda: [sibling],
            ledger=self.ledger,
            metrics=self.metrics,
            **limits,
        )
        self.decider = StoredDecider(self.ledger, self.store)

    async def pick(self, session: str) -> Picked:
        """Place one request."""
        answer = self.decider.decide(key(session), {})
        if isinstance(answer, Awaitable):
            answer = await answer
        assert isinstance(answer, Picked)
        return answer

    def end(self, picked: Picked, finish: str = "stop") -> None:
        """Let it end well."""
        self.decider.ended(
            Entry(
                pick_id=picked.pick_id,
                upstream=picked.destination.partition(",")[0],
                status=200,
                flags="-",
                attempts=1,
                finish=finish,
                prompt_tokens=10_000,
                cached_tokens=0,
                completion_tokens=100,
                refused=False,
            )
        )

    async def request(self, session: str) -> str | None:
        """A whole request; the home that it went to."""
        picked = await self.pick(session)
        self.end(picked)
        return picked.decision.home

    def home(self, session: str) -> str | None:
        """Where a conversation lives, as far as this router knows."""
        known = self.ledger.state.get(key(session))
        return known.home if known is not None else None

    async def settled(self) -> None:
        """Wait until nothing waits to be written."""
        await until(lambda: self.store.written)


def key(session: str) -> ConversationKey:
    return ConversationKey(session.encode().hex().rjust(16, "0"), "")


async def until(check: Callable[[], bool], timeout_s: float = 15.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not check():  # noqa: ASYNC110 - it looks at another process
            await asyncio.sleep(0.01)


@pytest.fixture
def server() -> Iterator[StoreProcess]:
    with StoreProcess() as process:
        yield process


@pytest.fixture
async def make(server: StoreProcess) -> AsyncIterator[Make]:
    tasks: list[asyncio.Task[None]] = []

    async def start(name: str, sibling: str, limits: dict[str, float] = PATIENT) -> RouterWithStore:
        router = RouterWithStore(name, sibling, server.url, limits)
        tasks.append(asyncio.ensure_future(router.store.run()))
        await until(lambda: router.store.available)
        return router

    yield start
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_conversation_has_one_home_over_all_routers(make: Make) -> None:
    one, two = await make("one", "two"), await make("two", "one")
    homes = {f"s{number}": await one.request(f"s{number}") for number in range(20)}
    await one.settled()
    assert {session: await two.request(session) for session in homes} == homes
    assert two.ledger.state.get(key("s0")).ctx_tokens == one.ledger.state.get(key("s0")).ctx_tokens  # type: ignore[union-attr]


async def test_when_two_routers_place_a_conversation_at_once_one_home_stays(make: Make) -> None:
    one, two = await make("one", "two"), await make("two", "one")
    # Each sees another replica as the only good one.
    one.ledger.replicas["e1"].others_in_flight = two.ledger.replicas["e2"].others_in_flight = 0
    for uid in ("e2", "e3"):
        one.ledger.replicas[uid].draining = True
    for uid in ("e1", "e3"):
        two.ledger.replicas[uid].draining = True
    first, second = await asyncio.gather(one.pick("s"), two.pick("s"))
    assert {first.decision.home, second.decision.home} == {"e1", "e2"}
    await one.settled()
    await two.settled()
    assert one.home("s") == two.home("s")


async def test_load_of_other_routers_is_seen(make: Make) -> None:
    one, two = await make("one", "two"), await make("two", "one")
    picked = await one.pick("s")
    home = picked.decision.home
    assert home is not None
    await until(lambda: two.ledger.replicas[home].others_in_flight == 1)
    one.end(picked)
    await until(lambda: two.ledger.replicas[home].others_in_flight == 0)


async def test_conversations_that_another_router_waits_for_count_until_they_come_back(make: Make) -> None:
    one, two, three = await make("one", "two"), await make("two", "one"), await make("three", "one")
    picked = await one.pick("s")
    home = str(picked.decision.home)
    one.end(picked, "tool_calls")
    await one.settled()
    assert one.ledger.state.pending_on(home) == 1
    for router in (two, three):
        await until(lambda router=router: router.ledger.replicas[home].others_pending == 1)
    again = await two.pick("s")
    assert again.decision.home == home
    await until(lambda: one.ledger.state.pending_on(home) == 0)
    for router in (two, three):
        await until(lambda router=router: router.ledger.replicas[home].others_pending == 0)
    # Now it is the second router that waits for it, and whoever hears the second sees that.
    two.end(again, "tool_calls")
    await until(lambda: one.ledger.replicas[home].others_pending == 1)
    assert one.ledger.state.pending_on(home) == 0


async def test_a_router_that_is_asked_nothing_more_waits_for_nobody_for_ever(make: Make) -> None:
    one, two = await make("one", "two"), await make("two", "one")
    picked = await one.pick("s")
    home = str(picked.decision.home)
    one.end(picked, "tool_calls")
    await until(lambda: two.ledger.replicas[home].others_pending == 1)
    waited_s = one.ledger.config.idle_pending_s + 1
    one.ledger.clock_s = lambda: time.time() + waited_s
    await until(lambda: two.ledger.replicas[home].others_pending == 0)


async def test_what_a_router_tells_of_conversations_is_bounded(make: Make, server: StoreProcess) -> None:
    exchange = (await make("one", "two")).store._exchange
    client = connect(server.url, None)
    exchange.took_over(key("s"), "no router any more")
    pipeline = client.pipeline(transaction=False)
    exchange.ask(pipeline, ["silent"])
    await pipeline.execute()
    assert not await client.keys("sglpool:p:t:no*")
    lengths = []
    for _ in range(3):
        for number in range(MAX_TAKEN + 10):
            exchange.took_over(key(str(number)), "silent")
        pipeline = client.pipeline(transaction=False)
        exchange.ask(pipeline, ["silent"])
        await pipeline.execute()
        lengths.append(await client.llen("sglpool:p:t:silent"))
    assert lengths == [MAX_TAKEN, 2 * MAX_TAKEN, MAX_UNREAD]
    assert 0 < await client.ttl("sglpool:p:t:silent") < 100
    await client.aclose()


async def test_a_store_that_dies_costs_no_home_and_comes_back(make: Make, server: StoreProcess) -> None:
    router = await make("one", "two")
    homes = {f"s{number}": await router.request(f"s{number}") for number in range(20)}
    server.kill()
    await until(lambda: not router.store.available)
    assert {session: await router.request(session) for session in homes} == homes
    assert router.home("unknown") is None
    assert await router.request("unknown") in ("e1", "e2", "e3")
    server.start()
    await until(lambda: router.store.available)
    # The store lost everything: requests bring it back.
    for session in homes:
        await router.request(session)
    await router.settled()
    other = await make("two", "one")
    assert {session: await other.request(session) for session in homes} == homes


async def test_a_store_that_hangs_is_waited_for_a_few_times_and_then_left_alone(
    make: Make, server: StoreProcess
) -> None:
    router = await make("one", "two", {"write_limit_s": 1.0})
    home = await router.request("s")
    server.hang()
    for _ in range(5):
        assert await router.request("s") == home
    await until(lambda: not router.store.available)
    assert not isinstance(router.decider.decide(key("s"), {}), Awaitable)
    server.go_on()
    await until(lambda: router.store.available)


async def test_what_others_wrote_into_the_store_cannot_break_a_router(make: Make, server: StoreProcess) -> None:
    router = await make("one", "two")
    client = connect(server.url, None)
    for number, junk in enumerate((b"", b"{", b"[]", b'{"home": 1}', b"x" * 10_000)):
        session = f"j{number}"
        await client.hset(router.store._key(key(session)), mapping={"home": "e9", "record": junk})
        assert await router.request(session) in ("e1", "e2", "e3")
    beats = [b"[1, 2]", b'{"e1": 1}', b'{"e1": [1]}', b'{"e1": ["x", 1]}', b'{"e1": [7, 2]}']
    for beat in beats:
        await client.set("sglpool:p:r:two", beat)
        await client.rpush("sglpool:p:t:one", b"", b"::", b"x:y:z", b"\xff:a:b", b"1:2:3:4")
        await client.hset(router.store._key(key("j0")), "router", b"\xff")
        assert await router.request("j0") in ("e1", "e2", "e3")
    await until(lambda: router.ledger.replicas["e1"].others_in_flight == 7)
    await client.delete("sglpool:p:t:one")
    await client.set("sglpool:p:t:one", b"no list")
    await client.set("sglpool:p:r:two", b'{"e1": [8, 2]}')
    await until(lambda: router.ledger.replicas["e1"].others_in_flight == 8)
    await client.aclose()
    await router.settled()
    assert router.store.available


async def test_a_home_that_is_gone_does_not_win_over_a_living_one(make: Make) -> None:
    one, two = await make("one", "two"), await make("two", "one")
    home = await one.request("s")
    await one.settled()
    assert home is not None
    for router in (one, two):
        router.ledger.remove(home)
    moved = await two.request("s")
    assert moved != home
    await two.settled()
    assert await one.request("s") == moved
