"""The picker beside a real Envoy: where requests go, and what is counted."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Callable
from typing import Any

import pytest

from sglpool.api import names
from support.envoy_peers import Answer
from support.picker_process import engine_pod
from support.waiting import wait_until

MakePool = Callable[[int], Any]
SSE = {"content-type": "text/event-stream"}


def eventually(check: Callable[[], Any], text: str) -> Any:
    return wait_until(check, timeout_s=20, describe=text, interval_s=0.02)


def in_flight(router: Any) -> int:
    return int(router.picker.state()["in_flight"])


def test_a_conversation_stays_and_new_ones_spread(make_pool: MakePool) -> None:
    pool = make_pool(4)
    router = pool.router()
    homes = {session: pool.served(lambda s=session: router.ask(s)) for session in ("a", "b", "c", "d")}
    assert sorted(homes.values()) == [0, 1, 2, 3]
    for session, home in homes.items():
        assert pool.served(lambda s=session: router.ask(s)) == home
    eventually(lambda: in_flight(router) == 0, "every slot is given back")
    assert router.picker.state()["conversations"] == 4
    assert router.picker.metric("sglpool_router_prompt_tokens_total") == 8000
    assert router.picker.metric("sglpool_router_cached_tokens_total") == 7200


def test_a_slot_is_held_for_a_stream_and_released_when_its_client_goes(make_pool: MakePool) -> None:
    pool = make_pool(1)
    router = pool.router()
    (engine,) = pool.engines
    engine.answer = Answer(headers=SSE, chunks=(b"data: 1\n\n", b"data: 2\n\n"), hold=True)
    response = router.open_stream("s")
    assert response.read1(100) == b"data: 1\n\n"
    assert in_flight(router) == 1
    response.close()
    wait_until(lambda: in_flight(router) == 0, timeout_s=3, describe="the slot is given back", interval_s=0.02)


def test_when_every_replica_is_at_its_limit_the_client_is_told_when_to_come_back(make_pool: MakePool) -> None:
    pool = make_pool(2)
    router = pool.router(max_concurrent_requests=1)
    served = [engine.answer for engine in pool.engines]
    for engine in pool.engines:
        engine.answer = Answer(headers=SSE, chunks=(b"data: 1\n\n", b"data: 2\n\n"), hold=True)
    streams = [router.open_stream(session) for session in ("a", "b")]
    for stream in streams:
        assert stream.status == 200
    reply = router.ask("c", b"x" * 3_000_000)
    assert reply.status == 429
    assert int(reply.headers["retry-after"]) >= 1
    assert pool.counts() == [1, 1]
    assert router.picker.state()["refused_conversations_last_minute"] == 1
    # Who is full is marked, so that Envoy's own choice avoids it too.
    eventually(lambda: set(router.picker.endpoints().values()) == {"DRAINING"}, "both are marked full")
    for stream, engine, answer in zip(streams, pool.engines, served, strict=True):
        engine.answer = answer
        stream.close()
    eventually(lambda: router.ask("c").status == 200, "a slot is free again")


def test_without_any_replica_envoy_answers(make_pool: MakePool) -> None:
    reply = make_pool(0).router().ask()
    assert reply.status == 503
    assert int(reply.headers["retry-after"]) >= 1


def test_a_draining_replica_keeps_its_conversations_and_gets_no_new_ones(make_pool: MakePool) -> None:
    pool = make_pool(2)
    router = pool.router()
    home = pool.served(lambda: router.ask("old"))
    engine = pool.engines[home]
    uid = f"e{home + 1}"
    pool.api.put(engine_pod(uid, engine.ip, annotations={names.ANNOTATION_DRAINING: "true"}))
    eventually(lambda: router.picker.endpoints()[engine.address] == "DRAINING", "Envoy is told")
    assert pool.served(lambda: router.ask("old")) == home
    assert {pool.served(lambda s=s: router.ask(s)) for s in ("n1", "n2", "n3")} == {1 - home}
    assert router.picker.replica(uid)["draining"]
    assert not router.picker.replica(uid)["idle"], "a conversation that lives there was just seen"


def test_a_pod_that_is_deleted_gets_nothing_more_and_its_conversations_move(make_pool: MakePool) -> None:
    pool = make_pool(2)
    router = pool.router()
    home = pool.served(lambda: router.ask("s"))
    engine = pool.engines[home]
    pool.api.put(engine_pod(f"e{home + 1}", engine.ip, terminating=True))
    eventually(lambda: router.picker.endpoints()[engine.address] == "DRAINING", "Envoy is told")
    assert pool.served(lambda: router.ask("s")) == 1 - home
    pool.api.delete(f"e{home + 1}")
    eventually(lambda: engine.address not in router.picker.endpoints(), "the endpoint is gone")
    assert pool.served(lambda: router.ask("s")) == 1 - home


def test_an_unproven_replica_is_unknown_to_envoy_and_never_picked(make_pool: MakePool) -> None:
    pool = make_pool(1)
    router = pool.router()
    new = pool.add_engine("new", annotations={names.ANNOTATION_UNPROVEN: "true"})
    eventually(lambda: len(router.picker.state()["replicas"]) == 2, "the picker sees it")
    assert new.address not in router.picker.endpoints()
    for session in "abcdef":
        router.ask(session)
    assert not new.seen
    pool.api.put(engine_pod("new", new.ip))
    eventually(lambda: router.picker.endpoints().get(new.address) == "HEALTHY", "it is proven")


def test_an_address_that_another_pod_has_now_is_another_replica(make_pool: MakePool) -> None:
    pool = make_pool(2)
    router = pool.router()
    home = pool.served(lambda: router.ask("s"))
    engine = pool.engines[home]
    pool.api.delete(f"e{home + 1}")
    pool.api.put(engine_pod("successor", engine.ip))
    eventually(lambda: any(r["uid"] == "successor" for r in router.picker.state()["replicas"]), "the new pod is known")
    assert router.picker.replica("successor")["conversations"] == 0
    router.ask("s")
    assert router.picker.metric('sglpool_router_decisions_total{rule="failover"}') == 1
    eventually(lambda: in_flight(router) == 0, "no slot leaks")


def test_an_engine_that_dies_costs_its_own_stream_alone(make_pool: MakePool) -> None:
    pool = make_pool(2)
    router = pool.router()
    home = pool.served(lambda: router.ask("s"))
    pool.engines[home].kill()
    # Envoy tries the second host at once; the next requests know.
    assert router.ask("s").status == 200
    eventually(lambda: not router.picker.replica(f"e{home + 1}")["healthy"], "the picker knows")
    assert pool.served(lambda: router.ask("s")) == 1 - home
    eventually(lambda: in_flight(router) == 0, "no slot leaks")


def test_a_replica_that_refuses_is_left_alone_until_it_has_room(make_pool: MakePool) -> None:
    pool = make_pool(2)
    router = pool.router(max_queued_requests=8)
    home = pool.served(lambda: router.ask("s"))
    engine = pool.engines[home]
    served = engine.answer
    # Both as busy as each other: the refusal alone makes the difference.
    for each in pool.engines:
        each.loads["num_waiting_reqs"] = 6
    eventually(lambda: {replica["load"] for replica in router.picker.state()["replicas"]} == {6.0}, "both are busy")
    refusal = {"error": {"message": "The request queue is full.", "type": "SERVICE_UNAVAILABLE", "code": 503}}
    engine.answer = Answer(headers=SSE, chunks=(b"data: " + json.dumps(refusal).encode() + b"\n\n",))
    router.ask("s")
    eventually(lambda: router.picker.replica(f"e{home + 1}")["refused"], "the refusal is seen")
    assert router.picker.metric("sglpool_router_engine_refusals_total") == 1
    assert pool.served(lambda: router.ask("s")) == 1 - home
    engine.answer = served
    engine.loads["num_waiting_reqs"] = 1
    eventually(lambda: not router.picker.replica(f"e{home + 1}")["refused"], "a good poll lets it in again")
    assert pool.served(lambda: router.ask("s")) == home


def test_a_replica_that_answers_no_poll_gets_no_new_request(make_pool: MakePool) -> None:
    pool = make_pool(2)
    router = pool.router()
    home = pool.served(lambda: router.ask("s"))
    pool.engines[home].deaf = True
    eventually(lambda: not router.picker.replica(f"e{home + 1}")["healthy"], "two polls are missed")
    assert pool.served(lambda: router.ask("s")) == 1 - home
    pool.engines[home].deaf = False
    eventually(lambda: router.picker.replica(f"e{home + 1}")["healthy"], "it answers again")


def test_a_prefill_that_the_engine_does_not_count_is_load(make_pool: MakePool) -> None:
    pool = make_pool(2)
    router = pool.router()
    pool.engines[0].loads.update(num_used_tokens=24_576, num_waiting_uncached_tokens=100_000)
    eventually(lambda: router.picker.replica("e1")["load"] == 1, "the prefill is seen")
    assert not router.picker.replica("e1")["idle"]
    assert router.picker.replica("e2")["idle"]
    assert 3 < router.picker.replica("e1")["prefill_wait_s"] < 30
    assert router.picker.replica("e2")["prefill_wait_s"] == 0
    assert pool.served(lambda: router.ask("s")) == 1
    pool.engines[0].loads.update(num_used_tokens=0, num_waiting_uncached_tokens=0)
    eventually(lambda: router.picker.replica("e1")["prefill_wait_s"] == 0, "it is over")


def test_what_clients_say_about_routing_is_ignored(make_pool: MakePool) -> None:
    pool = make_pool(2)
    router = pool.router()
    home = pool.served(lambda: router.ask("s"))
    forged = {"x_sglpool_destination": pool.engines[1 - home].address, "x_sglpool_pick": "x", "x_sglpool_length": "9"}
    assert pool.served(lambda: router.ask("s", **forged)) == home
    assert router.ask("s", x_large="y" * 50_000).status in (200, 431)
    assert router.picker.metric("sglpool_router_bad_log_lines_total") == 0


def test_a_new_key_counts_without_a_restart(make_pool: MakePool, tmp_path: Any) -> None:
    (tmp_path / "alice").write_text("secret-one\n")
    router = make_pool(1).router(api_keys={"alice": "secret-one"}, api_keys_dir=str(tmp_path))
    assert router.ask(authorization="Bearer secret-one").status == 200
    assert router.ask(authorization="Bearer secret-two").status == 401
    (tmp_path / "alice").write_text("secret-two")
    eventually(lambda: router.ask(authorization="Bearer secret-two").status == 200, "the new key counts")
    eventually(lambda: router.ask(authorization="Bearer secret-one").status == 401, "the old one does not")


def test_its_own_endpoint_is_read_only(make_pool: MakePool) -> None:
    router = make_pool(1).router()
    assert router.picker.get("/healthz") == "ok\n"
    state = router.picker.state()
    assert (state["pool"], state["router"], state["store"]["available"]) == ("p", "pod-r1", True)
    assert state["replicas"][0]["last_poll_age_s"] < 10
    with pytest.raises(urllib.error.HTTPError, match="404"):
        router.picker.get("/")
