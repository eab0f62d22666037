"""What the answers of routers and engines mean; what cannot be believed is missing, never zero."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sglpool.signals import Reading
from sglpool.signals.engines import parse_loads, reading_of
from sglpool.signals.fields import Unreadable, parse_object
from sglpool.signals.routers import RouterState, merge, parse_state
from support.signal_peers import Json, endpoint, loads, replica, state, target


def parse(answer: Json, *, known: tuple[str, ...] = ("a", "b"), router: str = "r1") -> RouterState:
    return parse_state(answer, pool="p", router=router, known=known)


def read(*answers: Json | str, **changes: Any) -> Reading:
    """What routers r1, r2 and so on say; a text is why one said nothing."""
    names = [f"r{number}" for number, _ in enumerate(answers, 1)]
    asked = {
        endpoint(name): answer if isinstance(answer, str) else parse(answer | {"router": name}, router=name)
        for name, answer in zip(names, answers, strict=True)
    }
    return merge(asked, target("a", "b", routers=tuple(names), **changes))


def test_the_pools_load_is_the_sum_over_its_routers():
    first = state(replica("a", in_flight=3, conversations=5), replica("b"), refused_conversations_last_minute=1)
    second = state(replica("a", in_flight=2, conversations=1), replica("b", in_flight=4))
    reading = read(first, second)
    assert (reading.in_flight, reading.refused_conversations) == (9.0, 1)
    assert (reading.routers_read, reading.routers_known, reading.problems) == (2, 2, ())
    assert (reading.replicas["a"].in_flight, reading.replicas["a"].conversations) == (5, 6)


def test_what_several_routers_polled_is_taken_from_the_latest_poll():
    old = state(replica("a", kv_used_tokens=900, queued=7, last_poll_age_s=9.0))
    new = state(replica("a", kv_used_tokens=100, queued=2, last_poll_age_s=0.2))
    found = read(old, new).replicas["a"]
    assert (found.kv_used_tokens, found.queued, found.age_s) == (100, 2, 0.2)


def test_a_router_that_says_nothing_is_missing_and_said():
    reading = read(state(replica("a", in_flight=3)), "Router r2 cannot be reached: connection refused.")
    assert (reading.in_flight, reading.routers_read, reading.routers_known) == (3.0, 1, 2)
    assert reading.problems == ("Router r2 cannot be reached: connection refused.",)


def test_no_router_that_answers_is_no_load_and_not_zero():
    assert read("Router r1 does not answer.").in_flight is None
    assert merge({}, target("a", routed=True)).in_flight is None
    assert "no router pod" in merge({}, target("a", routed=True)).problems[0]


def test_a_router_that_need_not_answer_counts_when_it_does():
    late = endpoint("r9", required=False)
    with_it = {endpoint("r1"): parse(state(replica("a", in_flight=1)))}
    silent = merge(with_it | {late: "Router r9 is silent."}, target("a", routers=("r1", "r9")))
    assert (silent.in_flight, silent.routers_read, silent.routers_known, silent.problems) == (1.0, 1, 1, ())
    speaks = parse(state(replica("a", in_flight=4)))
    assert merge(with_it | {late: speaks}, target("a", routers=("r1", "r9"))).in_flight == 5.0


def test_a_replica_is_idle_only_if_every_router_was_asked_and_says_so():
    idle, busy = state(replica("a"), replica("b")), state(replica("a", idle=False), replica("b"))
    assert read(idle, idle).replicas["a"].idle
    assert not read(idle, busy).replicas["a"].idle
    assert not read(idle, "Router r2 is silent.").replicas["a"].idle
    assert not read(idle, state(replica("b"))).replicas["a"].idle


def test_a_replica_that_no_router_has_polled_is_missing():
    never = state(replica("a", last_poll_age_s=None), replica("b"))
    assert [*read(never).replicas] == ["b"]
    assert read(never).in_flight == 0.0


@pytest.mark.parametrize("used", [1_000_001, 10**12])
def test_more_kv_in_use_than_there_is_says_nothing_of_that_replica(used):
    assert "a" not in read(state(replica("a", kv_used_tokens=used))).replicas


def test_a_replica_without_a_kv_cache_says_nothing():
    assert "a" not in read(state(replica("a", kv_total_tokens=0))).replicas


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (state(pool="q"), "speaks for pool 'q'"),
        (state(router="another"), "speaks for router 'another'"),
        (state(replica("gone", in_flight=2)), "replicas that do not exist"),
        (state(replica("a", in_flight=2), in_flight=7), "other requests in flight"),
        (state(replica("a", in_flight=-1)), "in_flight is -1"),
        (state(replica("a", in_flight=1.5)), "in_flight is 1.5"),
        (state(replica("a", in_flight=True)), "in_flight is True"),
        (state(replica("a", queued=None)), "queued is missing"),
        (state(replica("a", kv_used_tokens="9")), "kv_used_tokens is '9'"),
        (state(replica("a", last_poll_age_s=-3)), "last_poll_age_s is -3"),
        (state(refused_conversations_last_minute=None), "refused_conversations_last_minute is missing"),
        (state() | {"replicas": {"a": 1}}, "replicas is {'a': 1}"),
        ({}, "pool is missing"),
    ],
)
def test_a_router_that_cannot_be_right_is_not_believed(answer, words):
    with pytest.raises(Unreadable, match=words.replace("{", "\\{")):
        parse(answer)


def test_a_replica_that_the_operator_does_not_know_yet_does_not_count():
    assert [*parse(state(replica("a"), replica("new"))).replicas] == ["a"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<!DOCTYPE html><title>502</title>", "HTML"),
        (b"", "nothing"),
        (b'{"a": NaN}', "instead of JSON"),
        (b'{"a": Infinity}', "instead of JSON"),
        (b"[1, 2]", "no object"),
        (b"\xff\xfe", "instead of JSON"),
        (b"[" * 100_000, "instead of JSON"),
    ],
)
def test_an_answer_that_is_no_object_of_json(body, words):
    with pytest.raises(Unreadable, match=words):
        parse_object(body)


def test_an_engine_counts_what_runs_and_what_waits():
    found = parse_loads(loads(num_running_reqs=3, num_waiting_reqs=2, num_used_tokens=500))
    assert (found.in_flight, found.queued, found.kv_used_tokens, found.kv_total_tokens) == (5, 2, 500, 1_000_000)
    assert not found.idle


def test_a_chunked_prefill_is_in_neither_count_and_is_not_idle():
    for only in ({"num_used_tokens": 8192}, {"num_waiting_uncached_tokens": 100_000}):
        found = parse_loads(loads(**only))
        assert (found.in_flight, found.idle) == (1, False)
    assert parse_loads(loads()).idle


def test_ranks_of_an_engine_are_summed():
    body = loads(num_running_reqs=2)
    body["loads"] *= 2
    found = parse_loads(body)
    assert (found.in_flight, found.kv_total_tokens) == (4, 2_000_000)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"loads": []},
        {"loads": ["x"]},
        loads(num_running_reqs=-1),
        loads(num_used_tokens=2_000_000),
        loads(max_total_num_tokens=0),
        {"loads": [{"num_running_reqs": 1}]},
    ],
)
def test_an_engine_that_cannot_be_right_is_missing(body):
    with pytest.raises(Unreadable):
        parse_loads(json.loads(json.dumps(body)))


def test_without_any_engine_that_answers_there_is_no_load():
    assert reading_of({}, ("silent",)).in_flight is None
    assert reading_of({"a": parse_loads(loads(num_running_reqs=2))}, ()).in_flight == 2.0
