"""Reading over HTTP: who does not answer, answers slowly or answers nonsense is missing, and nobody waits for it."""

from __future__ import annotations

import asyncio
import base64
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from sglpool.kube import Forbidden, NotFound
from sglpool.signals import PrometheusAt, Reading, Sources, Tokens, http, promclient
from sglpool.signals.fields import Unreadable
from sglpool.signals.http import Web
from sglpool.signals.prometheus import PrometheusReader, parse_series, promql
from support.signal_peers import Json, endpoint, loads, replica, serve, state, target

LIMIT_S = 0.3
"""For those who never end."""
SLOW = ("slow", "dripping")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[[str, Handler], Awaitable[int]]


class Secrets:
    """An API server that has one Secret."""

    def __init__(self, data: Json | Exception) -> None:
        self.data = data
        self.reads = 0

    async def get(self, resource: Any, *, namespace: str, name: str) -> Json:
        self.reads += 1
        assert (resource.kind, namespace, name) == ("Secret", "ns", "prometheus")
        if isinstance(self.data, Exception):
            raise self.data
        return {"data": {key: base64.b64encode(value.encode()).decode() for key, value in self.data.items()}}


@pytest.fixture
async def serving() -> AsyncIterator[Serve]:
    async with AsyncExitStack() as stack:

        async def start(path: str, handler: Handler) -> int:
            server = await serve(path, handler)
            stack.push_async_callback(server.close)
            assert server.port is not None
            return server.port

        yield start


async def read(of: Any, *, secrets: Json | Exception | None = None, limit_s: float = 30) -> Reading:
    tokens = Tokens(Secrets(secrets if secrets is not None else {}))
    web, prometheus = Web(limit_s=limit_s), PrometheusReader(limit_s=limit_s)
    sources = Sources(tokens, web=web, prometheus=prometheus, limit_s=2 * limit_s)
    async with sources:
        return await sources.read(of)


def answers(body: Any, **how: Any) -> Handler:
    async def handler(_: web.Request) -> web.StreamResponse:
        if isinstance(body, dict):
            return web.json_response(body, **how)
        return web.Response(body=body, **how)

    return handler


async def hangs(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    raise AssertionError


async def drips(request: web.Request) -> web.StreamResponse:
    """A byte now and then: no single read is late."""
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(600):
        await response.write(b" ")
        await asyncio.sleep(LIMIT_S / 6)
    return response


async def floods(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(100):
        await response.write(b" " * 1000)
    return response


@pytest.fixture(autouse=True)
def short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of length that a test can reach on a busy machine."""
    monkeypatch.setattr(http, "MAX_ANSWER_BYTES", 20_000)
    monkeypatch.setattr(promclient, "MAX_ANSWER_BYTES", 20_000)


HTML = answers(b"<!doctype html><title>Sign in</title>", content_type="text/html")
BAD: dict[str, tuple[Handler, str]] = {
    "slow": (hangs, f"does not answer /state in {LIMIT_S} s"),
    "dripping": (drips, f"does not answer /state in {LIMIT_S} s"),
    "endless": (floods, "answers /state with more than 20000 bytes"),
    "html": (HTML, "answers HTML instead of JSON"),
    "an error": (answers(b"no", status=500), "answers /state with status 500"),
    "elsewhere": (answers(b"", status=302, headers={"Location": "http://127.0.0.1:1/"}), "with status 302"),
    "another pool's": (answers(state(pool="q")), "speaks for pool 'q'"),
}


async def test_a_routers_state_is_read(serving: Serve):
    port = await serving("/state", answers(state(replica("a", in_flight=2, kv_used_tokens=300))))
    reading = await read(target("a", routers=("r1",), router_port=port))
    assert (reading.in_flight, reading.problems) == (2.0, ())
    assert reading.measured == reading.replicas
    assert reading.measured["a"].kv_used_tokens == 300


@pytest.mark.parametrize("name", BAD)
async def test_a_router_that_cannot_be_read_is_missing_and_holds_nobody_up(serving: Serve, name: str):
    handler, words = BAD[name]
    port = await serving("/state", handler)
    limit_s = LIMIT_S if name in SLOW else 30
    begin_s = time.monotonic()
    reading = await read(target("a", routers=("r1",), router_port=port), limit_s=limit_s)
    assert time.monotonic() - begin_s < 20
    assert (reading.in_flight, reading.routers_read, reading.routers_known) == (None, 0, 1)
    (problem,) = reading.problems
    assert problem.startswith("Router r1 ")
    assert words in problem


async def test_a_router_that_is_gone_is_missing():
    reading = await read(target("a", routers=("r1",), router_port=1))
    assert reading.problems == ("Router r1 cannot be reached: connection refused.",)


async def test_engines_are_read_where_there_is_no_router(serving: Serve):
    port = await serving("/v1/loads", answers(loads(num_running_reqs=3, num_used_tokens=300)))
    silent = endpoint("c", address="127.0.0.2")
    starting = endpoint("d", address="127.0.0.2", required=False)
    nowhere = endpoint("e", address="", required=False)
    engines = (endpoint("a"), endpoint("b"), silent, starting, nowhere)
    reading = await read(replace(target(), engines=engines, engine_port=port))
    assert reading.in_flight == 6.0
    assert [*reading.measured] == ["a", "b"]
    assert reading.problems == ("Replica c cannot be reached: connection refused.",)


async def test_a_pool_is_read_in_bounded_time_whoever_hangs(serving: Serve):
    port = await serving("/state", hangs)
    sources = Sources(Tokens(Secrets({})), web=Web(limit_s=60), limit_s=LIMIT_S)
    async with sources:
        reading = await sources.read(target("a", routers=("r1", "r2"), router_port=port))
    assert (reading.in_flight, reading.routers_read, reading.routers_known) == (None, 0, 2)
    assert reading.problems


NOW_S = 1_800_000_000.0


def series(name: str, value: object, *, pod: str = "a", at_s: float = NOW_S - 5, **labels: str) -> Json:
    metric = {"__name__": f"sglang:{name}", "namespace": "ns", "pod": pod, **labels}
    return {"metric": metric, "values": [[at_s - 15, "1"], [at_s, str(value)]]}


def gauges(pod: str = "a", *, running: object = 2, used: object = 400, **common: Any) -> list[Json]:
    return [
        series("num_running_reqs", running, pod=pod, **common),
        series("num_queue_reqs", 1, pod=pod, **common),
        series("num_used_tokens", used, pod=pod, **common),
        series("max_total_num_tokens", 1000, pod=pod, **common),
    ]


AT = PrometheusAt(url="http://prometheus:9090")


def measured(found: list[Json], **pods: Any) -> dict[str, Any]:
    engines = (endpoint("a", **pods), endpoint("b"))
    return dict(parse_series(found, AT, replace(target(), engines=engines), now_s=NOW_S).replicas)


def test_the_query_asks_for_the_pool_and_no_other():
    assert promql(replace(target(), pool="kimi.x")) == (
        '{__name__=~"sglang:num_running_reqs|sglang:num_queue_reqs|sglang:num_used_tokens|sglang:max_total_num_tokens",'
        'namespace="ns",pod=~"kimi\\\\.x-[a-z0-9]+-[0-9]+"}[2m]'
    )


def test_the_newest_samples_with_their_age():
    found = measured(gauges())
    assert [*found] == ["a"]
    one = found["a"]
    assert (one.in_flight, one.queued, one.kv_used_tokens, one.kv_total_tokens, one.age_s) == (3, 1, 400, 1000, 5.0)


def test_every_rank_says_the_same_of_the_whole():
    ranks = [*gauges(tp_rank="0"), *gauges(tp_rank="1"), series("num_running_reqs", 9, at_s=NOW_S - 80, tp_rank="7")]
    assert measured(ranks)["a"].in_flight == 3


@pytest.mark.parametrize(
    "bad",
    [
        gauges(running="NaN"),
        gauges(running="+Inf"),
        gauges(running="-1"),
        gauges(running="x"),
        gauges(used=2000),
        gauges()[:3],
        gauges(namespace="another"),
        gauges(pod="q-b200-0"),
        gauges(at_s=NOW_S + 3600),
        [{"metric": {"__name__": "sglang:num_running_reqs", "namespace": "ns", "pod": "a"}, "values": []}],
        [{"metric": None}, {}],
        [],
    ],
)
def test_what_is_no_figure_of_this_pool_now_is_missing(bad: list[Json]):
    assert measured(bad) == {}


def test_a_former_pod_of_the_name_says_nothing_of_this_one():
    assert measured(gauges(), since_s=NOW_S - 1) == {}


def test_who_is_missing_is_named_with_the_remedy():
    engines = (endpoint("a"), endpoint("b", required=False))
    (problem,) = parse_series([], AT, replace(target(), engines=engines), now_s=NOW_S).problems
    assert problem.startswith("Prometheus http://prometheus:9090 has no current figures of pod a:")
    assert "labels namespace and pod" in problem


def prometheus_answer(found: list[Json]) -> Json:
    return {"status": "success", "data": {"resultType": "matrix", "result": found}}


async def read_prometheus(
    port: int, *, secrets: Json | Exception | None = None, limit_s: float = 30, **changes: Any
) -> Reading:
    at = PrometheusAt(url=f"http://127.0.0.1:{port}/", secret=("prometheus", "token") if secrets is not None else None)
    return await read(replace(target("a", prometheus=at, engine_port=1), **changes), secrets=secrets, limit_s=limit_s)


async def test_a_prometheus_stands_in_for_the_engines(serving: Serve):
    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.headers["Authorization"] == "Bearer s3cret"
        assert request.query["query"].endswith("[2m]")
        return web.json_response(prometheus_answer(gauges(at_s=time.time() - 5)))

    port = await serving("/api/v1/query", handler)
    reading = await read_prometheus(port, secrets={"token": "s3cret\n"})
    assert (reading.in_flight, reading.queued, reading.problems) == (3.0, 1, ())
    assert reading.measured["a"].kv_used_tokens == 400
    assert reading.measured["a"].age_s == pytest.approx(5, abs=4)
    assert reading.replicas == {}, "whether a replica is empty is never read from a Prometheus"


async def test_routers_still_count_the_requests(serving: Serve):
    seen = await serving("/api/v1/query", answers(prometheus_answer(gauges(at_s=time.time()))))
    routers = await serving("/state", answers(state(replica("a", in_flight=7, kv_used_tokens=9))))
    routed = {"routed": True, "routers": (endpoint("r1"),), "router_port": routers}
    reading = await read_prometheus(seen, **routed)
    assert reading.in_flight == 7.0
    one = reading.measured["a"]
    assert (one.in_flight, one.kv_used_tokens) == (7, 400)
    assert reading.replicas["a"].kv_used_tokens == 9


BAD_PROMETHEUS: dict[str, tuple[Handler, str]] = {
    "slow": (hangs, "does not answer"),
    "dripping": (drips, "cannot be asked"),
    "endless": (floods, "cannot be asked"),
    "html": (HTML, "not Prometheus' JSON"),
    "another JSON": (answers({"hello": 1}), "not Prometheus' JSON"),
    "a scalar": (answers({"data": {"result": ["1", 2]}}), "not Prometheus' JSON"),
    "refused": (answers(b"no token", status=401), "refuses: HTTP Status Code 401."),
    "elsewhere": (
        answers(b"", status=302, headers={"Location": "http://127.0.0.1:1/"}),
        "refuses: HTTP Status Code 302",
    ),
    "another pool's": (answers(prometheus_answer(gauges("q-b200-0"))), "no current figures of pod a"),
}


@pytest.mark.parametrize("name", BAD_PROMETHEUS)
async def test_a_prometheus_that_cannot_be_believed_is_missing_and_holds_nobody_up(serving: Serve, name: str):
    handler, words = BAD_PROMETHEUS[name]
    begin_s = time.monotonic()
    limit_s = LIMIT_S if name in SLOW else 30
    reading = await read_prometheus(await serving("/api/v1/query", handler), limit_s=limit_s)
    assert time.monotonic() - begin_s < 20
    assert (reading.in_flight, reading.measured) == (None, {})
    (problem,) = reading.problems
    assert problem.startswith("Prometheus http://127.0.0.1:")
    assert "no token" not in problem, "what an address answers is not for the status of a pool"
    # A slow answer ends by either of two limits of the same length.
    assert words in problem or (name == "dripping" and "does not answer" in problem)


async def test_a_prometheus_that_is_down_is_missing():
    reading = await read_prometheus(1)
    assert reading.in_flight is None
    assert "cannot be asked" in reading.problems[0]


async def test_a_question_that_hangs_is_not_asked_again_meanwhile():
    asked = 0
    released = threading.Event()

    def ask(*_: object) -> list[Any]:
        nonlocal asked
        asked += 1
        assert released.wait(30)
        return []

    reader = PrometheusReader(ask=ask, limit_s=0.05)
    first = await reader.read(AT, target("a"))
    second = await reader.read(AT, target("a"))
    released.set()
    reader.close()
    assert "does not answer" in first.problems[0]
    assert "not answered the last question yet" in second.problems[0]
    assert asked == 1


@pytest.mark.parametrize(
    ("secrets", "words"),
    [
        (NotFound("x", verb="get", kind="Secret", code=404), "does not exist: create it"),
        (Forbidden("x", verb="get", kind="Secret", code=403), "may not read: grant it get"),
        ({"other": "x"}, "key token of Secret prometheus, which it does not have"),
        ({"token": ""}, "holds no token"),
        ({"token": "two\nlines"}, "holds no token"),
    ],
)
async def test_without_its_token_a_prometheus_is_missing(secrets: Json | Exception, words: str):
    reading = await read_prometheus(1, secrets=secrets)
    assert reading.in_flight is None
    assert words in reading.problems[0]


async def test_a_token_is_kept_for_a_minute_and_never_shown():
    now_s = [0.0]
    secrets = Secrets({"token": "s3cret"})
    tokens = Tokens(secrets, clock=lambda: now_s[0])
    for at_s in (0.0, 59.0, 61.0):
        now_s[0] = at_s
        assert await tokens.read("ns", "prometheus", "token") == "s3cret"
    assert secrets.reads == 2
    secrets.data, now_s[0] = {"token": "a\u00e9b"}, 200.0
    with pytest.raises(Unreadable) as caught:
        await tokens.read("ns", "prometheus", "token")
    assert "a\u00e9b" not in str(caught.value)
    assert "s3cret" not in repr(replace(AT, token="s3cret"))
