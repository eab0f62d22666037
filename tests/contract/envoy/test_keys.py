"""The conversation's key inside Envoy: from a harness's headers, else from the first user message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sglpool.routing import pickerconfig as names

SYSTEM = {"role": "system", "content": 'You are a careful agent. Answer with "role": "user" never. ' + "s" * 70_000}
TOOLS = [
    {"type": "function", "function": {"name": f"tool{n}", "parameters": {"role": {"type": "string"}}}}
    for n in range(300)
]
USER = {"role": "user", "content": 'Fix the "quoted" bug in {parser} [1]\\ please \u00e9'}
ASSISTANT = {"role": "assistant", "content": "On it."}
LATER = {"role": "user", "content": "And now the tests."}


def key(router: Any, body: object, *, path: str = "/v1/chat/completions", **headers: str) -> tuple[str, str]:
    """(session, conversation) as the picker sees them."""
    router.picker.seen.clear()
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    assert (
        router.envoy.request("POST", path, data, headers={k.replace("_", "-"): v for k, v in headers.items()}).status
        == 200
    )
    seen = router.picker.last().headers
    return seen.get(names.HEADER_KEY_SESSION, ""), seen.get(names.HEADER_KEY_CONVERSATION, "")


def chat(*messages: object, **more: object) -> dict[str, object]:
    """A body as most clients write it."""
    return {"model": "m", "messages": list(messages), **more}


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"x-sglpool-session": "s", "x-sglpool-conversation": "c"}, ("s", "c")),
        ({"x-claude-code-session-id": "s"}, ("s", "")),
        ({"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"}, ("s", "a")),
        ({"session-id": "s", "thread-id": "t"}, ("s", "t")),
        ({"x-session-id": "s"}, ("s", "")),
        ({"Modal-Session-Id": "s"}, ("s", "")),
        ({"x-session-id": "late", "x-sglpool-session": "own"}, ("own", "")),
    ],
)
def test_the_harness_names_the_conversation(router: Any, headers: dict[str, str], expected: tuple[str, str]) -> None:
    assert key(router, chat(USER), **headers) == expected


def test_a_key_stays_while_the_conversation_grows(router: Any) -> None:
    for extra in ({}, {"tools": TOOLS}, {"stream": True, "tools": TOOLS}):
        first = key(router, {**extra, **chat(SYSTEM, USER)})
        assert first[0] == first[1] != ""
        assert key(router, {**extra, **chat(SYSTEM, USER, ASSISTANT, LATER)}) == first
        assert key(router, {**extra, **chat(SYSTEM, USER, ASSISTANT, LATER, ASSISTANT, USER)}) == first


def test_tools_and_system_do_not_matter_and_the_message_does(router: Any) -> None:
    plain = key(router, chat(SYSTEM, USER))
    assert key(router, chat(SYSTEM, USER, tools=TOOLS)) == plain
    assert key(router, chat({"role": "system", "content": "short"}, USER)) == plain
    assert key(router, chat(SYSTEM, LATER)) != plain


def test_compact_json_and_role_last_are_read_too(router: Any) -> None:
    compact = json.dumps(chat(SYSTEM, USER), separators=(",", ":")).encode()
    grown = json.dumps(chat(SYSTEM, USER, ASSISTANT, LATER), separators=(",", ":")).encode()
    assert key(router, compact) == key(router, grown)
    swapped = [{"content": m["content"], "role": m["role"]} for m in (SYSTEM, USER, ASSISTANT, LATER)]
    first = key(router, chat(*swapped[:2]))
    assert first == key(router, chat(*swapped))
    assert first != key(router, chat(swapped[0], {"content": "Another task.", "role": "user"}))


def test_parts_and_wandering_cache_marks(router: Any) -> None:
    marked = {"role": "user", "content": [{"type": "text", "text": "Fix it", "cache_control": {"type": "ephemeral"}}]}
    plain = {"role": "user", "content": [{"type": "text", "text": "Fix it"}]}
    body = {"model": "m", "max_tokens": 9, "system": [{"type": "text", "text": "x"}]}
    first = key(router, {**body, "messages": [marked]}, path="/v1/messages")
    assert first[0]
    assert key(router, {**body, "messages": [plain, ASSISTANT, marked]}, path="/v1/messages") == first


def test_long_messages_differ_by_their_ends(router: Any) -> None:
    long = [{"role": "user", "content": "t" * 3000 + end} for end in ("a", "b")]
    assert key(router, chat(long[0])) != key(router, chat(long[1]))
    huge = {"role": "user", "content": "h" * 300_000}
    assert key(router, chat(huge)) == key(router, chat(huge, ASSISTANT, LATER))


def test_other_apis(router: Any) -> None:
    text = key(router, {"model": "m", "input": "Fix it"}, path="/v1/responses")
    assert text[0]
    assert key(router, {"model": "m", "input": [USER]}, path="/v1/responses")[0] not in ("", text[0])
    assert key(router, {"model": "m", "prompt": "Once"}, path="/v1/completions")[0] not in ("", text[0])


def test_where_nothing_tells_there_is_no_key_and_still_an_answer(router: Any) -> None:
    assert key(router, chat(SYSTEM)) == ("", "")
    assert key(router, b"{}") == ("", "")


def test_what_does_not_fit_the_buffer_goes_without_a_key(router: Any) -> None:
    assert key(router, json.dumps(chat(USER)).encode() + b" " * 9_000_000) == ("", "")


def test_a_message_across_the_pieces_is_found(router: Any) -> None:
    want = key(router, chat(USER))
    for pad in (65_400, 65_440, 65_460, 65_480, 65_500, 65_520, 131_000):
        assert key(router, chat({"role": "system", "content": "p" * pad}, USER)) == want
