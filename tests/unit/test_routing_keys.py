"""Which conversation a request belongs to, from headers as each harness sends them."""

import pytest

from sglpool.routing.keys import FORWARDED_HEADERS, KEY_HEADERS, fallback_key, key_of

COMMON = {
    "host": "router:8000",
    "content-type": "application/json",
    "accept": "text/event-stream",
    "content-length": "9",
}

CLAUDE_CODE = COMMON | {
    "user-agent": "claude-cli/2.1.150 (external, cli)",
    "anthropic-version": "2023-06-01",
    "x-api-key": "k",
    "x-claude-code-session-id": "3f0c8c1e-7f1a-4a54-9a55-0b5a6f2f8d11",
}
CODEX = COMMON | {
    "user-agent": "codex_cli_rs/0.120.0 (Linux; x86_64)",
    "authorization": "Bearer k",
    "originator": "codex_cli_rs",
    "session-id": "019a2b6c-0d7e-7c11-8a1f-52f1a4f3b001",
    "thread-id": "019a2b6c-0d7e-7c11-8a1f-52f1a4f3b001",
}
OPENCODE = COMMON | {"user-agent": "opencode/1.4.2", "authorization": "Bearer k", "x-session-id": "ses_5b1f0c2d"}
MODAL = COMMON | {"user-agent": "OpenAI/Python 2.8.0", "modal-session-id": "run-17"}
OWN = COMMON | {"x-sglpool-session": "trial-4", "x-sglpool-conversation": "planner"}
HARNESSES = {"claude": CLAUDE_CODE, "codex": CODEX, "opencode": OPENCODE, "modal": MODAL, "own": OWN}


@pytest.mark.parametrize("name", sorted(HARNESSES))
def test_every_turn_of_a_conversation_has_the_same_key(name: str) -> None:
    headers = HARNESSES[name]
    key = key_of(headers)
    assert key is not None
    assert key_of(headers | {"content-length": "400000", "x-request-id": "other"}) == key
    assert all(header in headers for header in headers if header in FORWARDED_HEADERS)


def test_harnesses_do_not_share_keys() -> None:
    assert len({key_of(headers) for headers in HARNESSES.values()}) == len(HARNESSES)


@pytest.mark.parametrize(
    ("headers", "sub_agent"),
    [
        (CLAUDE_CODE, {"x-claude-code-agent-id": "a81"}),
        (CODEX, {"thread-id": "019a2b6c-0d7e-7c11-8a1f-52f1a4f3bfff"}),
        (OWN, {"x-sglpool-conversation": "coder"}),
    ],
)
def test_a_sub_agent_is_another_conversation_of_the_session(headers: dict[str, str], sub_agent: dict[str, str]) -> None:
    main, sub = key_of(headers), key_of(headers | sub_agent)
    assert main is not None
    assert sub is not None
    assert main.session == sub.session
    assert main.conversation != sub.conversation


def test_own_headers_come_before_those_of_a_harness() -> None:
    assert key_of(CLAUDE_CODE | {"x-sglpool-session": "mine"}) == key_of({"x-sglpool-session": "mine"})


def test_a_key_that_envoy_made_comes_before_all() -> None:
    made = {"x-sglpool-key-session": "f00d", "x-sglpool-key-conversation": "f00d"}
    assert key_of(OWN | made) == key_of(made) != key_of(OWN)


@pytest.mark.parametrize("headers", [COMMON, COMMON | {"x-session-id": ""}, COMMON | {"x-session-id": "  "}])
def test_without_a_session_there_is_no_key(headers: dict[str, str]) -> None:
    assert key_of(headers) is None


def test_an_empty_header_does_not_hide_the_next_harness() -> None:
    assert key_of(OPENCODE | {"session-id": ""}) == key_of(OPENCODE)


def test_keys_are_short_whatever_a_client_sends() -> None:
    key = key_of({"x-session-id": "\udcff" + "é" * 60_000, "x-sglpool-conversation": "ignored without its session"})
    assert key is not None
    assert len(key.session) + len(key.conversation) <= 32


def test_the_fallback_spreads_a_session_and_does_not_pile_up_strangers() -> None:
    main, sub = key_of(CLAUDE_CODE), key_of(CLAUDE_CODE | {"x-claude-code-agent-id": "a81"})
    assert fallback_key(main, "r1") == fallback_key(main, "r2") != fallback_key(sub, "r1")
    assert fallback_key(None, "r1") != fallback_key(None, "r2")


def test_header_names_are_lower_case_and_unique() -> None:
    assert list(FORWARDED_HEADERS) == [name.lower() for name in FORWARDED_HEADERS]
    assert len(set(FORWARDED_HEADERS)) == len(FORWARDED_HEADERS)
    assert KEY_HEADERS[0][0] == "x-sglpool-session"
