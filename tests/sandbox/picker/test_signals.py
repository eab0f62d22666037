"""What the operator reads from a real router, and from a real engine where there is none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from sandbox.picker.conftest import Pool, Router
from sglpool.signals import Endpoint, Reading, Sources, Target, Tokens
from support.engine_process import EngineProcess
from support.fake_kube import FakeKube
from support.picker_process import engine_pod
from support.signal_peers import endpoint, target
from support.waiting import wait_until

MakePool = Callable[[int], Pool]
TEXT = " ".join(f"word{number}" for number in range(2000))


def read(of: Target) -> Reading:
    async def ask() -> Reading:
        async with Sources(Tokens(FakeKube())) as sources:
            return await sources.read(of)

    return asyncio.run(ask())


def of(pool: Pool, router: Router, *, name: str = "p") -> Target:
    port = router.picker.config.state_port
    engines = tuple(endpoint(f"e{number}") for number, _ in enumerate(pool.engines, 1))
    routers = (Endpoint(name=f"pod-{router.picker.uid}", uid=router.picker.uid, address="127.0.0.1"),)
    return Target(namespace="ns", pool=name, routed=True, routers=routers, engines=engines, router_port=port)


def test_a_routers_counts_are_the_load_of_its_pool(make_pool: MakePool):
    pool = make_pool(2)
    for engine in pool.engines:
        engine.loads["num_used_tokens"] = 250_000
    router = pool.router()
    asked = of(pool, router)
    wait_until(lambda: len(read(asked).measured) == 2, timeout_s=20, describe="both are polled")
    idle = read(asked)
    assert (idle.in_flight, idle.routers_read, idle.problems) == (0.0, 1, ())
    assert {one.kv_used_tokens for one in idle.measured.values()} == {250_000}
    assert {one.kv_total_tokens for one in idle.measured.values()} == {1_000_000}
    assert all(one.age_s < 10 for one in idle.measured.values())

    pool.engines[0].answer.hold = pool.engines[1].answer.hold = True
    stream = router.open_stream("a")
    wait_until(lambda: read(asked).in_flight == 1.0, timeout_s=20, describe="the request is counted")
    stream.close()
    wait_until(lambda: read(asked).in_flight == 0.0, timeout_s=20, describe="it is over")


def test_a_replica_that_is_emptied_shows_what_its_conversations_would_lose(make_pool: MakePool):
    pool = make_pool(1)
    router = pool.router()
    assert router.ask("a").status == 200
    asked = of(pool, router)
    (uid,) = [engine.uid for engine in asked.engines]
    wait_until(
        lambda: uid in (found := read(asked).replicas) and found[uid].conversations == 1,
        timeout_s=20,
        describe="its home is known",
    )
    assert read(asked).replicas[uid].warm_tokens == 0, "counted only when it matters"
    pool.api.put(engine_pod(uid, pool.engines[0].ip, annotations={"sglpool.io/draining": "true"}))
    wait_until(lambda: read(asked).replicas[uid].warm_tokens > 900, timeout_s=20, describe="its tokens are counted")
    assert not read(asked).replicas[uid].idle, "its conversation was there a moment ago"


def test_a_router_of_another_pool_or_one_that_died_is_missing(make_pool: MakePool):
    pool = make_pool(1)
    router = pool.router()
    wait_until(lambda: read(of(pool, router)).in_flight == 0.0, timeout_s=20, describe="it is read")
    stranger = read(of(pool, router, name="q"))
    assert stranger.in_flight is None
    assert "speaks for pool 'p'" in stranger.problems[0]
    router.picker.kill()
    gone = read(of(pool, router))
    assert (gone.in_flight, gone.replicas) == (None, {})
    assert "cannot be reached" in gone.problems[0]


def test_an_engines_own_counts_where_there_is_no_router(tmp_path: Path):
    with EngineProcess(tmp_path) as engine:
        engine.wait_ready()
        asked = Target(namespace="ns", pool="p", routed=False, engines=target("a").engines, engine_port=engine.port)
        idle = read(asked)
        assert (idle.in_flight, idle.problems) == (0.0, ())
        assert idle.measured["a"].idle
        assert idle.measured["a"].kv_total_tokens == engine.load()["max_total_num_tokens"]
        body = {"model": "m", "prompt": TEXT, "max_tokens": 100_000, "ignore_eos": True}
        stream = engine.stream("/v1/completions", body, timeout_s=60)
        try:
            wait_until(lambda: read(asked).in_flight == 1.0, timeout_s=30, describe="the request is counted")
            busy = read(asked).measured["a"]
            assert not busy.idle
            assert busy.kv_used_tokens > 1000
        finally:
            stream.close()
