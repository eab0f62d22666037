"""What the access log learns of a response, in every API, however the bytes are cut."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.envoy_peers import Answer

NOTHING = {"finish": "-", "prompt_tokens": "-", "cached_tokens": "-", "completion_tokens": "-", "refused": "-"}
CHAT_USAGE = {
    "prompt_tokens": 25000, "total_tokens": 25042, "completion_tokens": 42,
    "prompt_tokens_details": {"cached_tokens": 24999}, "reasoning_tokens": 3,
}  # fmt: skip
MESSAGES_USAGE = {"input_tokens": 25000, "cache_read_input_tokens": 24999, "output_tokens": 42}
SUM = {"prompt_tokens": "25000", "cached_tokens": "24999", "completion_tokens": "42"}


def sse(*events: object, names: bool = False) -> bytes:
    """Server-sent events."""
    out = b""
    for event in events:
        data = event if isinstance(event, str) else json.dumps(event)
        kind = f"event: {event['type']}\n" if names and isinstance(event, dict) else ""
        out += f"{kind}data: {data}\n\n".encode()
    return out


STREAM = {"content-type": "text/event-stream; charset=utf-8"}
WHOLE = {"content-type": "application/json"}


def logged(
    router: Any,
    chunks: tuple[bytes, ...],
    *,
    path: str = "/v1/chat/completions",
    status: int = 200,
    headers: dict[str, str] = WHOLE,
) -> dict[str, str]:
    """The scan's fields of the next log entry."""
    router.a.answer = Answer(status=status, chunks=chunks, headers=headers)
    count = len(router.envoy.access_log())
    reply = router.envoy.request("POST", path, {}, headers={"x-session-id": "s"})
    assert reply.body == b"".join(chunks)
    entry = router.envoy.wait_logged(count + 1)[-1]
    return {name: entry[name] for name in NOTHING}


def delta(text: str, finish: str | None = None) -> dict[str, Any]:
    """A chunk of a chat."""
    return {
        "choices": [{"index": 0, "delta": {"content": text, "tool_calls": None}, "finish_reason": finish}],
        "usage": None,
    }


CHAT = sse(
    delta("a"), delta('{"finish_reason":"length","usage":{"prompt_tokens":1},"error":{"code":503}}'),
    delta("", "tool_calls"), {"choices": [], "usage": CHAT_USAGE}, "[DONE]",
)  # fmt: skip
MESSAGES = sse(
    {"type": "message_start", "message": {"stop_reason": None, "usage": {"input_tokens": 1, "output_tokens": 0}}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": '"stop_reason":"max_tokens"'}},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None},
     "usage": MESSAGES_USAGE},
    {"type": "message_stop"}, names=True,
)  # fmt: skip
RESPONSE_USAGE = {"input_tokens": 25000, "input_tokens_details": {"cached_tokens": 24999}, "output_tokens": 42}


def response(*items: dict[str, Any], **more: Any) -> dict[str, Any]:
    """An object of the responses API."""
    echo = {"max_output_tokens": 4096, "error": None, "tools": [{"type": "function", "name": "f"}]}
    return {"object": "response", "status": "completed", **echo, "output": list(items), **more, "usage": RESPONSE_USAGE}


MESSAGE = {"type": "message", "content": [{"type": "output_text", "text": '{"type":"function_call"}'}]}
CALL = {"type": "function_call", "name": "f", "arguments": "{}"}
RESPONSES = sse({"type": "response.created"}, {"type": "response.completed", "response": response(CALL)}, names=True)

STREAMS = {"chat": CHAT, "messages": MESSAGES, "responses": RESPONSES}
PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}


LEARNT = {**SUM, "finish": "tool_calls", "refused": "-"}


@pytest.mark.parametrize("api", STREAMS)
def test_a_stream_is_understood_however_it_is_cut(router: Any, api: str) -> None:
    whole = STREAMS[api]
    for size in (len(whole), 1000, 97, 61):
        chunks = tuple(whole[i : i + size] for i in range(0, len(whole), size))
        assert logged(router, chunks, path=PATHS[api], headers=STREAM) == LEARNT, size
    events = tuple(part + b"\n\n" for part in whole.split(b"\n\n") if part)
    assert logged(router, events, path=PATHS[api], headers=STREAM) == LEARNT


TEXT = "t" * 900
LONG = {
    "chat": sse(*[delta(TEXT)] * 60, delta("", "tool_calls"), {"choices": [], "usage": CHAT_USAGE}, "[DONE]"),
    # What it was asked stands at the beginning of a stream, what it answered at the end.
    "messages": sse(
        {"type": "message_start", "message": {"usage": {**MESSAGES_USAGE, "output_tokens": 0}}},
        *[{"type": "content_block_delta", "delta": {"type": "text_delta", "text": TEXT}}] * 60,
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 42}},
        {"type": "message_stop"}, names=True,
    ),
    # The last event repeats everything, and a call may be far from its end.
    "responses": sse(
        {"type": "response.created"},
        *[{"type": "response.output_text.delta", "delta": TEXT}] * 60,
        {"type": "response.completed", "response": response(CALL, {**MESSAGE, "more": TEXT * 60})}, names=True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("size", [100_000, 16_384, 1000, 700])
@pytest.mark.parametrize("api", LONG)
def test_a_long_stream_is_understood_by_its_ends(router: Any, api: str, size: int) -> None:
    whole = LONG[api]
    chunks = tuple(whole[i : i + size] for i in range(0, len(whole), size))
    assert logged(router, chunks, path=PATHS[api], headers=STREAM) == LEARNT


def test_a_refusal_after_much_text_is_recognised(router: Any) -> None:
    chunks = tuple(sse(delta(TEXT)) for _ in range(60))
    assert logged(router, (*chunks, sse(REFUSAL)), headers=STREAM)["refused"] == "true"


@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize(
    ("body", "finish"),
    [
        ({"choices": [{"finish_reason": "stop", "matched_stop": 1}], "usage": CHAT_USAGE}, "stop"),
        ({"choices": [{"finish_reason": "length"}], "usage": CHAT_USAGE}, "length"),
        ({"choices": [{"finish_reason": "abort"}], "usage": CHAT_USAGE}, "abort"),
        ({"choices": [{"finish_reason": "content_filter"}], "usage": CHAT_USAGE}, "unknown"),
        ({"stop_reason": "end_turn", "usage": MESSAGES_USAGE}, "stop"),
        ({"stop_reason": "max_tokens", "usage": MESSAGES_USAGE}, "length"),
        (response(MESSAGE), "stop"),
        (response(MESSAGE, CALL), "tool_calls"),
        (response(MESSAGE, status="incomplete", incomplete_details={"reason": "max_output_tokens"}), "length"),
    ],
)  # fmt: skip
def test_a_whole_answer_is_understood(router: Any, body: dict[str, Any], finish: str, compact: bool) -> None:
    text = json.dumps({"text": "t" * 50_000} | body, separators=(",", ":") if compact else None).encode()
    assert logged(router, (text,)) == {**SUM, "finish": finish, "refused": "-"}


REFUSAL = {
    "error": {
        "object": "error",
        "message": "The request queue is full.",
        "type": "SERVICE_UNAVAILABLE",
        "param": None,
        "code": 503,
    }
}
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "The request queue is full."}}


@pytest.mark.parametrize(
    "stream",
    [
        sse(REFUSAL, {"choices": [], "usage": {"prompt_tokens": 0, "completion_tokens": 0}}, "[DONE]"),
        sse(OVERLOADED, names=True),
    ],
)
def test_a_refusal_inside_a_200_is_recognised(router: Any, stream: bytes) -> None:
    assert logged(router, (stream,), headers=STREAM)["refused"] == "true"


def test_other_errors_are_no_refusals(router: Any) -> None:
    other = {"error": {"message": "Input is too long", "type": "BadRequestError", "code": 400}}
    assert logged(router, (sse(other),), headers=STREAM)["refused"] == "-"
    assert logged(router, (json.dumps(other).encode(),), status=400) == NOTHING
    assert logged(router, (json.dumps({"error": None, "code": 503}).encode(),)) == NOTHING


@pytest.mark.parametrize("headers", [STREAM, WHOLE, {}], ids=["stream", "whole", "untold"])
def test_an_answer_that_says_nothing_leaves_the_fields_empty(router: Any, headers: dict[str, str]) -> None:
    assert logged(router, (b"",), headers=headers) == NOTHING
    assert logged(router, (b"\x00\xff" * 40_000,), headers=headers) == NOTHING
    assert router.envoy.log() == ""
