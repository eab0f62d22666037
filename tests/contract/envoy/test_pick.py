"""The picker's word: obeyed, retried on its second host, and done without when the picker is away."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from sglpool.render.envoy.shape import PICKER_TIMEOUT_S
from sglpool.routing import pickerconfig as names
from support.envoy_peers import Answer
from support.envoy_process import endpoint
from support.waiting import wait_until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
SESSION = {"x-session-id": "s1"}


def test_a_request_goes_where_the_picker_says(router: Any) -> None:
    router.pick(router.b, router.a)
    assert router.envoy.request(body=CHAT).status == 200
    assert router.counts() == [0, 1]
    (entry,) = router.envoy.wait_logged()
    assert (entry["pick"], entry["upstream"], entry["status"]) == ("pick-1", router.b.address, "200")


def test_the_picker_learns_the_length_and_the_key_but_no_body_and_no_credentials(router: Any) -> None:
    body = json.dumps(CHAT).encode()
    router.envoy.request(body=body, headers=SESSION | {"cookie": "c", "x-other": "o"})
    seen = router.picker.last()
    assert (seen.method, seen.path, seen.body) == ("POST", "/v1/chat/completions", b"")
    assert seen.headers[names.HEADER_LENGTH] == str(len(body))
    assert seen.headers[names.HEADER_KEY_SESSION] == "s1"
    assert seen.headers[names.HEADER_REQUEST_ID]
    assert not {"cookie", "x-other", "authorization"} & seen.headers.keys()


def test_a_client_cannot_say_where_its_request_goes(make_router: Callable[..., Any]) -> None:
    router = make_router(3)
    forged = {name: router.engines[2].address for name in (names.HEADER_DESTINATION, names.HEADER_PICK)}
    forged |= {names.HEADER_KEY_SESSION: "x", names.HEADER_KEY_CONVERSATION: "x", names.HEADER_LENGTH: "1"}
    assert router.envoy.request(body=CHAT, headers=forged).status == 200
    seen = router.picker.last().headers
    assert seen[names.HEADER_LENGTH] != "1"
    assert seen[names.HEADER_KEY_SESSION] != "x"
    router.picker.kill()
    targets = set()
    for _ in range(12):
        before = router.counts()
        router.envoy.request(body=CHAT, headers=SESSION | forged)
        targets |= {i for i, (x, y) in enumerate(zip(before, router.counts(), strict=True)) if y > x}
    home = router.counts()
    assert len(targets) == 1, home
    assert router.envoy.wait_logged(13)[-1]["pick"] == "-"


def test_a_client_cannot_ask_for_retries_or_timeouts_of_envoy(router: Any) -> None:
    router.a.answer = router.b.answer = Answer(status=500)
    forged = {"x-envoy-retry-on": "5xx", "x-envoy-max-retries": "9", "x-envoy-upstream-rq-timeout-ms": "1"}
    assert router.envoy.request(body=CHAT, headers=forged).status == 500
    assert router.counts() == [1, 0]
    assert not [name for name in router.a.seen[0].headers if name.startswith("x-envoy-") and "upstream" in name]


def test_a_dead_home_is_retried_on_the_second_host_of_the_pick(make_router: Callable[..., Any]) -> None:
    router = make_router(4)
    router.a.kill()
    for second in (2, 3, 1):
        router.pick(router.a, router.engines[second])
        assert router.envoy.request(body=CHAT).status == 200
    assert router.counts() == [0, 1, 1, 1]


def test_a_home_that_dies_after_it_has_read_the_request_is_retried_once(make_router: Callable[..., Any]) -> None:
    router = make_router(3)
    router.a.reset = True
    assert router.envoy.request(body=CHAT).status == 200
    assert router.counts() == [1, 1, 0]
    (entry,) = router.envoy.wait_logged()
    assert (entry["upstream"], entry["attempts"]) == (router.b.address, "2")


def test_a_request_that_kills_engines_kills_two_at_most(make_router: Callable[..., Any]) -> None:
    router = make_router(4)
    for engine in router.engines:
        engine.reset = True
    reply = router.envoy.request(body=CHAT)
    assert reply.status == 503
    assert reply.headers["retry-after"] == "5"
    assert router.counts() == [1, 1, 0, 0]


def test_a_full_engine_is_retried_elsewhere_and_its_own_503_reaches_the_client(make_router: Callable[..., Any]) -> None:
    router = make_router(3)
    full = b'{"object":"error","message":"The request queue is full.","code":503}'
    router.a.answer = Answer(status=503, chunks=(full,))
    assert router.envoy.request(body=CHAT).status == 200
    router.b.answer = router.a.answer
    reply = router.envoy.request(body=CHAT)
    assert (reply.status, reply.body) == (503, full)
    assert router.counts() == [2, 2, 0]


@pytest.mark.parametrize("size", [400_000, 3_000_000, 7_500_000])
def test_a_long_context_can_be_sent_a_second_time(router: Any, size: int) -> None:
    router.a.reset = True
    body = json.dumps(CHAT).encode() + b" " * size
    assert router.envoy.request(body=body, headers=SESSION).status == 200
    assert len(router.b.seen[0].body) == len(body)


def test_no_request_fails_for_want_of_retries_when_a_home_dies_under_load(router: Any) -> None:
    router.a.silent = True
    replies: list[int] = []
    threads = [
        threading.Thread(target=lambda: replies.append(router.envoy.request(body=CHAT, headers=SESSION).status))
        for _ in range(30)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: router.counts() == [30, 0], timeout_s=20, describe=lambda: f"30 requests: {router.counts()}")
    router.a.kill()
    for thread in threads:
        thread.join(timeout=30)
    assert replies == [200] * 30


def test_a_draining_replica_is_reached_by_a_pick_and_skipped_by_the_ring(make_router: Callable[..., Any]) -> None:
    router = make_router(2, health=("DRAINING", "HEALTHY"))
    for _ in range(10):
        router.envoy.request(body=CHAT)
    assert router.counts() == [10, 0]
    router.picker.kill()
    for number in range(20):
        router.envoy.request(body=CHAT, headers={"x-session-id": f"s{number}"})
    assert router.counts() == [10, 20]


def test_a_pick_that_names_no_engine_falls_back(router: Any) -> None:
    router.picker.destination = "127.0.0.1:1,127.0.0.1:2"
    assert router.envoy.request(body=CHAT).status == 200
    router.picker.destination = "nonsense"
    assert router.envoy.request(body=CHAT).status == 200
    assert sum(router.counts()) == 2


def test_envoys_health_check_holds_for_the_ring_only_so_the_picker_must_know_health_itself(router: Any) -> None:
    router.a.ready = False
    router.envoy.wait_host(router.a.address, "failed")
    router.envoy.request(body=CHAT)
    assert router.counts() == [1, 0]
    router.picker.kill()
    for number in range(10):
        router.envoy.request(body=CHAT, headers={"x-session-id": f"s{number}"})
    assert router.counts() == [1, 10]


def test_without_the_picker_conversations_stay_and_spread(make_router: Callable[..., Any]) -> None:
    router = make_router(3)
    router.picker.kill()
    homes = {}
    for turn in range(3):
        for number in range(48):
            before = router.counts()
            reply = router.envoy.request(body=CHAT, headers={"x-session-id": f"s{number}"})
            assert (reply.status, reply.took_s < 5) == (200, True)
            (home,) = [i for i, (x, y) in enumerate(zip(before, router.counts(), strict=True)) if y > x]
            assert homes.setdefault(number, home) == home, f"turn {turn} of s{number}"
    assert len(set(homes.values())) == 3


def test_without_the_picker_a_dead_home_is_retried_elsewhere(router: Any) -> None:
    router.picker.kill()
    router.envoy.request(body=CHAT, headers=SESSION)
    home = router.engines[router.counts().index(1)]
    home.kill()
    assert router.envoy.request(body=CHAT, headers=SESSION).status == 200
    assert router.counts() == [1, 1]


def test_a_picker_that_hangs_costs_a_quarter_of_a_second_and_no_request(make_router: Callable[..., Any]) -> None:
    router = make_router(picker_timeout_s=PICKER_TIMEOUT_S)
    router.picker.hang = True
    reply = router.envoy.request(body=CHAT, headers=SESSION)
    assert reply.status == 200
    assert reply.took_s >= 0.2
    assert router.envoy.wait_logged()[0]["pick"] == "-"
    router.picker.hang = False
    wait_until(lambda: is_picked(router), timeout_s=10, describe="the picker is asked again")


def is_picked(router: Any) -> bool:
    """Whether the picker has placed a request, after another one."""
    assert router.envoy.request(body=CHAT, headers=SESSION).status == 200
    return any(entry["pick"] == "pick-1" for entry in router.envoy.wait_logged())


def test_a_picker_that_comes_back_is_asked_again(router: Any) -> None:
    router.picker.kill()
    router.envoy.request(body=CHAT, headers=SESSION)
    router.peers.run(router.picker.open())
    wait_until(lambda: is_picked(router), timeout_s=10, describe="the picker that came back is asked")


def test_a_refusal_by_the_picker_reaches_the_client_before_the_body_travels(router: Any) -> None:
    router.picker.refuse = Answer(status=429, headers={"retry-after": "3"}, chunks=(b"full",))
    reply = router.envoy.request(body=b"x" * 3_000_000, headers=SESSION)
    assert (reply.status, reply.headers["retry-after"]) == (429, "3")
    assert reply.json()["error"]["type"] == "rate_limit_error"
    assert router.counts() == [0, 0]
    assert router.envoy.wait_logged()[0]["upstream"] == "-"


def test_an_error_of_the_picker_lets_the_request_through(router: Any) -> None:
    router.picker.refuse = Answer(status=503)
    assert router.envoy.request(body=CHAT, headers=SESSION).status == 200


def test_lookups_ask_no_picker_and_take_no_slot(router: Any) -> None:
    for path in ("/v1/models", "/v1/models/org/name", "/tokenize", "/v1/messages/count_tokens"):
        assert router.envoy.request("GET", path).status == 200
    assert not router.picker.seen
    assert sum(router.counts()) == 4


def test_envoys_own_choice_takes_a_new_engine_as_soon_as_it_is_healthy(make_router: Callable[..., Any]) -> None:
    router = make_router(1)
    router.picker.kill()
    router.a.kill()
    new = router.peers.engine()
    router.envoy.write_engines([endpoint(new.address)])
    router.envoy.wait_host(new.address, "healthy")
    assert router.envoy.request(body=CHAT, headers=SESSION).status == 200
