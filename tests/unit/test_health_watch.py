"""The watch over health: when engines are asked, whom, and what follows from their answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from sglpool.api import names
from sglpool.controller.health import INTERVAL_S, MAX_LOOKS, HealthWatch
from sglpool.controller.metrics import Metrics
from sglpool.controller.store import PoolKey, Store
from sglpool.plan import Leave
from sglpool.plan.verdicts import Sample
from sglpool.signals import Endpoint
from sglpool.signals.fields import Unreadable
from sglpool.signals.health import (
    COMPUTED,
    GENERATED,
    VERIFY_CALLS,
    add_counters,
    parse_counters,
    parse_loads,
    read_samples,
)
from sglpool.signals.http import Web
from support import pools
from support.observed import observed_pod
from support.signal_peers import endpoint, loads
from support.vitals import KV_TOKENS, Engine, FakeEngines

Json = dict[str, Any]
KEY = ("serving", "kimi")
LONG_AGO = "2026-01-01T00:00:00Z"


class Scene:
    """A watch, and pools whose objects lie in a store."""

    def __init__(self, *, clock_speed: float = 1.0) -> None:
        self.store = Store()
        self.engines = FakeEngines()
        self.asked: list[PoolKey] = []
        self.versions = 0
        self.watch = HealthWatch(
            store=self.store,
            reader=self.engines,
            enqueue=self.asked.append,
            metrics=Metrics(),
            clock_speed=clock_speed,
        )

    def put(
        self, ready: Sequence[bool] = (True, True, True), *, name: str = "kimi", marks: dict[int, Leave] | None = None
    ) -> None:
        """A StatefulSet and its pods."""
        self.versions += 1
        labels = {names.LABEL_POOL: name, names.LABEL_GPU: "B200", names.LABEL_COMPONENT: names.COMPONENT_ENGINE}
        meta = {"namespace": "serving", "resourceVersion": str(self.versions), "labels": labels}
        owner = {"controller": True, "uid": f"pool-{name}", "kind": "InferencePool", "name": name}
        metadata = {**meta, "name": f"{name}-b200", "uid": f"sts-{name}", "ownerReferences": [owner]}
        self.store.put_statefulset({"metadata": metadata, "spec": {"replicas": len(ready)}})
        for ordinal, is_ready in enumerate(ready):
            owner = {"controller": True, "uid": f"sts-{name}", "kind": "StatefulSet", "name": name}
            pod = f"{name}-b200-{ordinal}"
            metadata = {**meta, "name": pod, "uid": pod, "creationTimestamp": LONG_AGO, "ownerReferences": [owner]}
            if marks and (why := marks.get(ordinal)) is not None:
                metadata["annotations"] = {
                    names.ANNOTATION_DRAINING: "true",
                    names.ANNOTATION_DRAIN_CAUSE: why.cause,
                    names.ANNOTATION_DRAIN_REASON: why.reason,
                }
            condition = {"type": "Ready", "status": str(is_ready), "lastTransitionTime": LONG_AGO}
            status = {"conditions": [condition], "podIP": "1.2.3.4"}
            self.store.put_pod({"metadata": metadata, "spec": {"nodeName": "n"}, "status": status})
            self.engines.engines[pod] = Engine(observed_pod(ordinal))

    def follow(self, name: str = "kimi", **spec: Any) -> None:
        self.watch.follow(pools.pool(spec, metadata={"name": name, "uid": f"pool-{name}"}))

    async def live(self, minutes: int, *, every_s: float = INTERVAL_S) -> None:
        for _ in range(minutes):
            await asyncio.sleep(every_s)
            for engine in self.engines.engines.values():
                engine.live(60)


def test_every_pool_is_looked_at_once_a_minute_and_ready_replicas_alone_are_asked(in_virtual_time):
    async def scenario():
        scene = Scene()
        scene.put((True, False, True))
        async with scene.watch:
            scene.follow()
            await scene.live(10)
            for _ in range(5):
                scene.follow()  # as every reconcile does
            await scene.live(10)
        assert scene.engines.asked == [["kimi-b200-0", "kimi-b200-2"]] * 20
        assert scene.asked == [KEY], "nothing is wrong: what the replicas hold is news once, and nothing is after that"
        await scene.live(10)
        assert len(scene.engines.asked) == 20, "the watch has ended"

    in_virtual_time(scenario())


def test_what_replicas_hold_is_known_and_asks_for_a_reconcile_when_it_is_news(in_virtual_time):
    async def scenario():
        scene = Scene()
        scene.put((True, False, True))
        async with scene.watch:
            scene.follow()
            assert scene.watch.kv_tokens(KEY) == {}
            await scene.live(5)
            assert scene.watch.kv_tokens(KEY) == {"kimi-b200-0": KV_TOKENS, "kimi-b200-2": KV_TOKENS}
            assert scene.asked == [KEY]
            scene.engines.engines["kimi-b200-2"].restart(kv_tokens=KV_TOKENS + 64)
            await scene.live(5)
            assert scene.watch.kv_tokens(KEY)["kimi-b200-2"] == KV_TOKENS + 64
            assert scene.asked == [KEY, KEY]
            scene.watch.forget(KEY)
            assert scene.watch.kv_tokens(KEY) == {}

    in_virtual_time(scenario())


def test_a_finding_asks_for_one_reconcile_and_is_news_once(in_virtual_time):
    async def scenario():
        scene = Scene()
        scene.put()
        scene.engines.engines["kimi-b200-1"].accept_length = 1.0
        async with scene.watch:
            scene.follow()
            await scene.live(2)
            scene.asked.clear()
            await scene.live(28)
            assert scene.asked == [KEY]
            assert scene.watch.view(KEY).unhealthy.keys() == {"kimi-b200-1"}
            (told,) = scene.watch.news(KEY)
            assert "accept length was 1.00" in told.sentence
            assert scene.watch.news(KEY) == []
            scene.engines.engines["kimi-b200-1"].accept_length = 4.0
            await scene.live(10)
            assert scene.asked == [KEY, KEY]
            assert scene.watch.view(KEY).findings == ()

    in_virtual_time(scenario())


def test_a_finding_outlives_the_operator_and_is_no_news_to_the_next_one(in_virtual_time):
    async def scenario():
        first = Scene()
        first.put()
        first.engines.engines["kimi-b200-1"].accept_length = 1.0
        async with first.watch:
            first.follow()
            await first.live(10)
            found = first.watch.view(KEY).unhealthy
        second = Scene()
        second.put(marks={1: found["kimi-b200-1"]})
        second.engines.engines["kimi-b200-1"].accept_length = 1.0
        async with second.watch:
            second.follow()
            assert second.watch.view(KEY).unhealthy == found
            assert second.watch.news(KEY) == []
            await second.live(10)
            assert second.watch.view(KEY).unhealthy == found

    in_virtual_time(scenario())


def test_a_pool_that_drafts_no_more_is_not_judged_by_its_draft(in_virtual_time):
    async def scenario():
        scene = Scene()
        scene.put()
        scene.engines.engines["kimi-b200-1"].accept_length = 1.0
        async with scene.watch:
            scene.follow(speculative=None)
            await scene.live(2)
            scene.asked.clear()
            await scene.live(28)
        assert scene.asked == []
        assert not scene.engines.drafts

    in_virtual_time(scenario())


def test_the_watch_lives_as_fast_as_the_engines(in_virtual_time):
    async def scenario():
        scene = Scene(clock_speed=20.0)
        scene.put()
        scene.engines.engines["kimi-b200-1"].accept_length = 1.0
        async with scene.watch:
            scene.follow()
            await scene.live(2, every_s=INTERVAL_S / 20)
            scene.asked.clear()
            await scene.live(8, every_s=INTERVAL_S / 20)
        assert scene.asked == [KEY]

    in_virtual_time(scenario())


def test_a_pool_of_a_former_name_begins_anew_and_one_that_is_gone_is_forgotten(in_virtual_time):
    async def scenario():
        scene = Scene()
        scene.put()
        scene.engines.engines["kimi-b200-1"].kv_tokens = 1000
        async with scene.watch:
            scene.follow()
            await scene.live(2)
            assert scene.watch.view(KEY).findings
            scene.watch.follow(pools.pool(metadata={"uid": "another"}))
            assert not scene.watch.view(KEY).findings
            scene.watch.forget(KEY)
            asked = len(scene.engines.asked)
            await scene.live(5)
            assert len(scene.engines.asked) == asked
            assert (scene.watch.news(KEY), scene.watch.view(KEY).unhealthy) == ([], {})

    in_virtual_time(scenario())


def test_slow_answers_skip_looks_and_looks_are_bounded_over_pools(in_virtual_time):
    async def scenario():
        scene = Scene()
        scene.engines.takes_s = 3 * INTERVAL_S
        count = 3 * MAX_LOOKS
        for number in range(count):
            scene.put(name=f"p{number}")
        async with scene.watch:
            for number in range(count):
                scene.follow(f"p{number}")
            await scene.live(9)
        assert MAX_LOOKS <= len(scene.engines.asked) <= 4 * MAX_LOOKS

    in_virtual_time(scenario())


def test_a_defect_in_one_look_does_not_end_the_next(in_virtual_time, caplog):
    async def scenario():
        scene = Scene()
        scene.put()
        calls = 0

        async def breaks(*_: object, **__: object) -> dict[str, Sample]:
            nonlocal calls
            calls += 1
            raise RuntimeError("a defect")

        scene.engines.read = breaks
        async with scene.watch:
            scene.follow()
            await scene.live(5)
        assert calls == 5
        assert "pool=serving/kimi the health of its replicas could not be looked at" in caplog.text

    in_virtual_time(scenario())


METRICS = b"""\
# HELP sglang:generation_tokens_total Output tokens.
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{engine_type="unified",is_streaming="false",model_name="m {x} y"} 40.0
sglang:generation_tokens_total{engine_type="unified",is_streaming="true",model_name="m"} 2.0 1767225600000
sglang:generation_tokens_total_other{a="b"} 1000.0
sglang:spec_verify_calls_total{model_name="m"} 1.2e+01
sglang:realtime_tokens_total{mode="decode"} 50.0
sglang:realtime_tokens_total{mode="prefill_compute"} 5e3
"""


def test_counters_are_summed_over_their_series():
    found = parse_counters(METRICS, (GENERATED, VERIFY_CALLS, COMPUTED, "sglang:nothing_total"))
    assert found == {GENERATED: 42.0, VERIFY_CALLS: 12.0, COMPUTED: 5050.0}


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "many", ""])
def test_a_counter_with_a_value_that_is_no_count_is_missing(value: str):
    text = METRICS + f'sglang:spec_verify_calls_total{{model_name="n"}} {value}\n'.encode()
    assert parse_counters(text, (GENERATED, VERIFY_CALLS)) == {GENERATED: 42.0}
    assert parse_counters(f"{VERIFY_CALLS} {value}\n".encode(), (VERIFY_CALLS,)) == {}


def body(**changes: Any) -> bytes:
    return web.json_response(loads(**changes)).body  # type: ignore[return-value]


def test_a_sample_has_what_is_to_do_and_what_is_done():
    answer = body(num_running_reqs=3, num_waiting_reqs=1, num_waiting_uncached_tokens=700, num_used_tokens=9)
    sample = parse_loads(answer, at_s=5.0)
    assert (sample.at_s, sample.requests, sample.waiting_tokens, sample.kv_total_tokens) == (5.0, 4, 700, 1_000_000)
    sample = add_counters(sample, METRICS)
    assert (sample.generated_tokens, sample.verify_calls) == (42.0, 12.0)
    assert sample.progress == (5050.0, 42.0, 9.0, 0.0, 0.0)


def test_without_counters_nothing_is_known_of_progress():
    sample = add_counters(parse_loads(body(num_running_reqs=3), at_s=5.0), b"")
    assert (sample.progress, sample.generated_tokens, sample.verify_calls) == (None, None, None)


@pytest.mark.parametrize("answer", [b"<html>", b"{}", b'{"loads": []}', body(max_total_num_tokens=0)])
def test_an_answer_that_is_none_is_no_sample(answer: bytes):
    with pytest.raises(Unreadable):
        parse_loads(answer, at_s=0)


@pytest.fixture
async def engines() -> AsyncIterator[Any]:
    """Starts engines on ports of their own that answer both questions with a body or a handler."""
    async with AsyncExitStack() as stack:

        async def start(loads_answer: Any, metrics_answer: Any) -> int:
            app = web.Application()
            for path, answer in (("/v1/loads", loads_answer), ("/metrics", metrics_answer)):
                app.router.add_get(path, answer if callable(answer) else _says(answer))
            runner = web.AppRunner(app, shutdown_timeout=0, handler_cancellation=True)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port: int = runner.addresses[0][1]
            return port

        yield start


def _says(answer: bytes) -> Any:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(body=answer)

    return handler


async def hangs(_: web.Request) -> web.Response:
    await asyncio.sleep(3600)
    raise AssertionError("somebody waited for it")


async def read(
    port: int, *pods: Endpoint, drafts: bool = True, limit_s: float = 30, answer_s: float = 30
) -> dict[str, Sample]:
    async with Web(limit_s=answer_s) as asks:
        return await read_samples(asks, pods, port, lambda: 7.0, drafts=drafts, limit_s=limit_s)


async def test_engines_are_asked_by_address(engines: Any):
    port = await engines(body(num_running_reqs=2), METRICS)
    found = await read(port, endpoint("a"), replace(endpoint("b"), address=""))
    assert found.keys() == {"a"}
    assert (found["a"].at_s, found["a"].requests, found["a"].generated_tokens) == (7.0, 2, 42.0)


async def test_the_thousand_lines_of_an_idle_engine_without_a_draft_are_not_asked_for(engines: Any):
    port = await engines(body(), hangs)
    found = await read(port, endpoint("a"), drafts=False)
    assert (found["a"].busy, found["a"].kv_total_tokens) == (False, 1_000_000)
    port = await engines(body(num_waiting_uncached_tokens=5), METRICS)
    assert (await read(port, endpoint("a"), drafts=False))["a"].generated_tokens == 42.0


@pytest.mark.parametrize("broken", ["loads", "metrics"])
async def test_who_hangs_has_no_sample_and_holds_nobody_up(engines: Any, broken: str):
    port = await engines(*((hangs, METRICS) if broken == "loads" else (body(), hangs)))
    assert await read(port, endpoint("a"), answer_s=0.2) == {}
    async with asyncio.timeout(20):
        assert await read(port, endpoint("a"), endpoint("b"), limit_s=0.2) == {}
