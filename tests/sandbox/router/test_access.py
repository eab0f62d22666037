"""A router with keys and tight limits, before one replica: who is turned away, with which words, and when no more."""

from __future__ import annotations

from collections.abc import Callable

import psutil
import pytest

from sandbox.router.routed_pool import API_KEY, RoutedPool, soon
from support.streaming import CHAT, Reply, chat, send

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(240)]

WRONG = ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "wrong"}, {"authorization": f"Basic {API_KEY}"})
RIGHT = ({"authorization": f"Bearer {API_KEY}"}, {"x-api-key": API_KEY})


def error_of(reply: Reply) -> str:
    """Message of an error in OpenAI's shape."""
    return str(reply.json()["error"]["message"])


def statuses(place: str, keys: tuple[dict[str, str], ...]) -> list[int]:
    return [send(place, body=chat("hello"), **key).status for key in keys]


def test_only_a_valid_key_opens_also_while_the_picker_hangs(
    closed: RoutedPool, stopped: Callable[[psutil.Process], None]
) -> None:
    place = closed.router.address
    assert (statuses(place, WRONG), statuses(place, RIGHT)) == ([401] * len(WRONG), [200] * len(RIGHT))
    stopped(closed.router.picker())
    assert (statuses(place, WRONG), statuses(place, RIGHT)) == ([401] * len(WRONG), [200] * len(RIGHT))
    assert "Send a valid API key" in error_of(send(place, "/v1/models"))


def test_a_body_over_the_limit_is_refused(closed: RoutedPool) -> None:
    place = closed.router.address
    fits = chat("x" * 900_000, max_tokens=1)
    assert send(place, body=chat("x" * 1_100_000, max_tokens=1), **RIGHT[0]).status == 413
    # The engine finds it too long, which is its own business.
    assert send(place, body=fits, **RIGHT[0]).status == 400
    assert send(place, body=chat("hello"), **RIGHT[0]).status == 200


def test_a_replica_at_its_limit_refuses_before_the_body_travels(closed: RoutedPool) -> None:
    router = closed.router
    soon(lambda: router.state()["in_flight"] == 0, "nobody else is here")
    with closed.streams(2) as streams:
        refused = closed.ask("third")
        assert refused.status == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert "at its limit" in error_of(refused)
        assert not streams.flowing(), "those that are in go on"
        # A long body does not wait for anybody to read it.
        assert send(router.address, body=chat("x" * 800_000), **closed.headers).status == 429
    soon(lambda: closed.ask("third").status == 200, "there is room again")


def test_without_any_replica_clients_are_told_when_to_try_again(closed: RoutedPool) -> None:
    place = closed.router.address
    with closed.streams(1) as streams:
        closed.kill_engine("closed-b200-0")
        soon(lambda: streams.broken(), "its stream breaks")
        refused = send(place, CHAT, chat("hello"), **closed.headers)
        assert refused.status == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert "No replica can take this request now" in error_of(refused)
        assert send(place, body=chat("hello"), authorization="Bearer wrong").status == 401
    soon(lambda: closed.ask("somebody").status == 200, "it serves again", timeout_s=90)
