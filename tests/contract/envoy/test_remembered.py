"""While the picker is away a conversation goes where it was sent last: its context is cached there."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sglpool.routing import pickerconfig as names
from support.envoy_peers import Answer
from support.envoy_process import endpoint

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
SESSIONS = [f"s{number}" for number in range(12)]


def ask(router: Any, session: str, **more: str) -> int:
    """Which engine serves a conversation."""
    before = router.counts()
    assert router.envoy.request(body=CHAT, headers={"x-session-id": session, **more}).status == 200
    (index,) = [at for at, (old, new) in enumerate(zip(before, router.counts(), strict=True)) if new > old]
    return index


@pytest.fixture
def placed(make_router: Callable[..., Any]) -> Any:
    """Four engines; the picker sends every conversation to the third, and names the fourth as the second host."""
    router = make_router(4)
    router.pick(router.engines[2], router.engines[3])
    assert {ask(router, session) for session in SESSIONS} == {2}
    return router


def test_the_picker_is_not_told_and_no_client_learns_where_it_went(placed: Any) -> None:
    reply = placed.envoy.request(body=CHAT, headers={"x-session-id": "s0"})
    assert not [name for name in reply.headers if name.startswith("x-sglpool")]
    assert names.HEADER_DESTINATION not in placed.picker.last().headers
    placed.picker.refuse = Answer(status=429, headers={"retry-after": "3"})
    reply = placed.envoy.request(body=CHAT, headers={"x-session-id": "s0"})
    assert (reply.status, [name for name in reply.headers if name.startswith("x-sglpool")]) == (429, [])


def test_a_picker_without_an_opinion_leaves_the_conversation_where_it_was(placed: Any) -> None:
    placed.picker.refuse = Answer(status=200, chunks=())
    assert {ask(placed, session) for session in SESSIONS} == {2}


def test_conversations_without_a_key_of_their_own_are_remembered(placed: Any) -> None:
    question = {"model": "m", "messages": [{"role": "user", "content": "a question of its own"}]}

    def ask_it() -> list[int]:
        before = placed.counts()
        assert placed.envoy.request(body=question).status == 200
        return [new - old for old, new in zip(before, placed.counts(), strict=True)]

    assert ask_it() == [0, 0, 1, 0]
    placed.picker.kill()
    assert [ask_it() for _ in range(3)] == [[0, 0, 1, 0]] * 3


def test_what_an_engine_refused_is_remembered_too(placed: Any) -> None:
    placed.pick(placed.engines[1])
    placed.engines[1].answer = Answer(status=400)
    assert placed.envoy.request(body=CHAT, headers={"x-session-id": "s0"}).status == 400
    placed.picker.kill()
    placed.engines[1].answer = Answer()
    assert ask(placed, "s0") == 1


def test_conversations_stay_while_the_picker_is_dead(placed: Any) -> None:
    placed.picker.kill()
    assert {ask(placed, session) for session in SESSIONS} == {2}
    assert placed.envoy.wait_logged(2 * len(SESSIONS))[-1]["pick"] == "-"


def test_conversations_stay_while_the_picker_hangs(placed: Any) -> None:
    placed.picker.hang = True
    before = placed.counts()
    # All at once, since each waits for the picker as long as it may.
    with ThreadPoolExecutor(4) as threads:
        replies = list(
            threads.map(lambda s: placed.envoy.request(body=CHAT, headers={"x-session-id": s}), SESSIONS[:4])
        )
    assert [reply.status for reply in replies] == [200] * 4
    assert [new - old for old, new in zip(before, placed.counts(), strict=True)] == [0, 0, 4, 0]


def test_new_conversations_spread_while_the_picker_is_dead(placed: Any) -> None:
    placed.picker.kill()
    assert len({ask(placed, f"new-{number}") for number in range(24)}) > 1


def test_the_pickers_last_word_counts(placed: Any) -> None:
    placed.pick(placed.engines[1], placed.engines[0])
    assert ask(placed, "s0") == 1
    placed.picker.kill()
    assert (ask(placed, "s0"), ask(placed, "s1")) == (1, 2)


def test_sub_agents_of_a_session_are_remembered_apart(placed: Any) -> None:
    agent = {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "one"}
    assert ask(placed, "unused", **agent) == 2
    placed.pick(placed.engines[1], placed.engines[0])
    assert ask(placed, "unused", **agent | {"x-claude-code-agent-id": "two"}) == 1
    placed.picker.kill()
    assert ask(placed, "unused", **agent) == 2
    assert ask(placed, "unused", **agent | {"x-claude-code-agent-id": "two"}) == 1


def test_a_home_that_is_dead_too_is_left_for_the_second_host(placed: Any) -> None:
    placed.picker.kill()
    placed.engines[2].kill()
    assert ask(placed, "s0") == 3


def test_a_home_that_is_gone_is_left_for_the_ring(placed: Any) -> None:
    placed.picker.kill()
    staying = placed.engines[:2]
    placed.envoy.write_engines([endpoint(engine.address) for engine in staying])
    for engine in placed.engines[2:]:
        placed.envoy.wait_host(engine.address, "gone")
    assert {ask(placed, session) for session in SESSIONS} <= {0, 1}


def test_what_is_remembered_is_bounded(make_router: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from sglpool.render.envoy import luascript

    monkeypatch.setattr(luascript, "MOST_REMEMBERED", 4)
    luascript.source.cache_clear()
    try:
        router = make_router(4)
    finally:
        luascript.source.cache_clear()
    router.pick(router.engines[2])
    # So many that the ring does not send all of the oldest to one engine by chance.
    sessions = [f"s{number}" for number in range(24)]
    for session in sessions:
        ask(router, session)
    router.picker.kill()
    assert {ask(router, session) for session in sessions[-4:]} == {2}, "the latest ones are known"
    assert len({ask(router, session) for session in sessions[:16]}) > 1, "the oldest ones are not"
