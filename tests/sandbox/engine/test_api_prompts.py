"""Prompts and replies of the simulated engine: a turn is a true prefix of the next, and every reply says what it is."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglpool.enginemodel.tokens import block_ids, count_tokens
from sglpool.sandbox.engine import anthropic_api, filler, responses_api
from sglpool.sandbox.engine.chat_template import IMAGE_TOKENS, ImageRules, render
from sglpool.sandbox.engine.errors import ApiError
from sglpool.sandbox.engine.openai_api import chosen_tool, prompt_bytes

RULES = ImageRules(vision=True, fetch=False)
TOOL = {
    "type": "function",
    "function": {
        "name": "run",
        "parameters": {
            "type": "object",
            "properties": {
                "command": {"type": "string"},
                "timeout": {"type": "integer"},
                "mode": {"enum": ["fast", "slow"]},
            },
            "required": ["timeout", "command", "mode"],
        },
    },
}
SCHEMA = TOOL["function"]["parameters"]  # type: ignore[index]


def prompt(messages: list[Any], tools: Any = None) -> bytes:
    return render(messages, tools, RULES).text


def answer(reply: filler.Reply) -> dict[str, Any]:
    """The message that a client puts into its history."""
    text = reply.text(0, reply.tokens).decode()
    if not reply.tool:
        return {"role": "assistant", "content": text}
    # Clients may change the id, and the blanks of what is JSON.
    arguments = json.dumps(json.loads(text), indent=1) if reply.stops else text
    call = {"id": "other", "type": "function", "function": {"name": reply.tool, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@given(content=st.text(max_size=60), tokens=st.integers(1, 300), limit=st.integers(1, 300), tool=st.booleans())
def test_the_next_turn_begins_with_this_turn_and_its_reply(content: str, tokens: int, limit: int, tool: bool) -> None:
    history: list[Any] = [{"role": "user", "content": content}]
    before = prompt(history, [TOOL])
    if tool:
        reply = filler.tool_call("run", SCHEMA, tokens, limit_tokens=max(limit, 4))
    else:
        reply = filler.words(tokens, limit_tokens=limit)
    after = prompt([*history, answer(reply), {"role": "user", "content": "go on"}], [TOOL])
    assert after.startswith(before + reply.stream())


@given(tokens=st.integers(1, 20_000), limit=st.integers(1, 20_000), tool=st.booleans(), step=st.integers(1, 999))
def test_a_reply_is_the_same_in_pieces_and_has_its_tokens(tokens: int, limit: int, tool: bool, step: int) -> None:
    make = filler.tool_call("run", SCHEMA, tokens, limit_tokens=limit) if tool else None
    reply = make or filler.words(tokens, limit_tokens=limit)
    stream = reply.stream()
    assert len(stream) == reply.tokens * filler.TOKEN_BYTES <= limit * filler.TOKEN_BYTES
    pieces = [reply.text(at, min(at + step, reply.tokens)) for at in range(0, reply.tokens, step)]
    assert b"".join(pieces) == reply.text(0, reply.tokens)
    assert reply.text(0, reply.tokens) in stream
    assert count_tokens(b"abc" + stream) == count_tokens(b"abc") + reply.tokens


def test_the_first_sentence_says_that_the_reply_is_simulated() -> None:
    text = filler.words(40, limit_tokens=100).text(0, 40).decode()
    assert text.startswith("This text is simulated")
    call = filler.tool_call("run", SCHEMA, 60, limit_tokens=100)
    assert json.loads(call.text(0, call.tokens))["command"].startswith("This text is simulated")


def test_a_tool_call_has_the_required_arguments_with_their_types() -> None:
    reply = filler.tool_call("run", SCHEMA, 50, limit_tokens=1000)
    arguments = json.loads(reply.text(0, reply.tokens))
    assert list(arguments) == ["timeout", "command", "mode"]
    assert arguments["timeout"] == 1
    assert arguments["mode"] == "fast"
    assert reply.stops


def test_a_limit_cuts_a_tool_call_off() -> None:
    reply = filler.tool_call("run", SCHEMA, 50, limit_tokens=10)
    assert reply.tokens == 10
    assert not reply.stops
    with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
        json.loads(reply.text(0, reply.tokens))


def test_a_reply_stops_by_itself_only_before_its_limit() -> None:
    assert filler.words(10, limit_tokens=11).stops
    assert not filler.words(10, limit_tokens=10).stops
    assert filler.words(10, limit_tokens=5).tokens == 5


def test_natural_lengths_are_those_of_coding_agents() -> None:
    lengths = sorted(filler.natural_tokens(b"prompt %d" % number) for number in range(4000))
    assert 190 < lengths[2000] < 245
    assert 780 < lengths[3600] < 1030
    assert lengths[0] >= 40
    assert lengths[-1] <= 8000
    assert filler.natural_tokens(b"same") == filler.natural_tokens(b"same")


def image(data: bytes) -> dict[str, Any]:
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}


def test_an_image_counts_fixed_tokens_and_is_known_by_its_content() -> None:
    first, again, other = prompt([image(b"a")]), prompt([image(b"a")]), prompt([image(b"b")])
    assert first == again != other
    assert len(first) == len(other)
    assert IMAGE_TOKENS < count_tokens(first) < IMAGE_TOKENS + 20


def test_a_model_for_text_drops_images() -> None:
    rendered = render([image(b"a")], None, ImageRules(vision=False, fetch=False))
    assert rendered.images == 0
    assert count_tokens(rendered.text) < 20


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("https://example.com/a.png", "disabled"),
        ("data:image/png;base64,???", "base64"),
        ("data:image/png,abc", "data:"),
        ("file:///etc/passwd", "neither"),
    ],
)
def test_an_image_that_cannot_be_taken_is_refused(url: str, says: str) -> None:
    with pytest.raises(ApiError, match=says):
        prompt([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}])


def test_image_urls_are_taken_where_fetching_is_allowed() -> None:
    part = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    rendered = render([{"role": "user", "content": [part]}], None, ImageRules(vision=True, fetch=True))
    assert rendered.images == 1


@pytest.mark.parametrize(
    "messages",
    [
        ["text"],
        [{"content": "no role"}],
        [{"role": "user", "content": 1}],
        [{"role": "user", "content": [{"type": "x"}]}],
    ],
)
def test_a_message_of_the_wrong_shape_is_refused(messages: list[Any]) -> None:
    with pytest.raises(ApiError) as caught:
        prompt(messages)
    assert caught.value.status == 400
    assert "messages.0" in caught.value.message.replace('", "', ".")


def test_half_a_surrogate_pair_in_a_text_is_no_error() -> None:
    assert prompt([{"role": "user", "content": "\ud800"}])


def test_anthropic_turns_are_prefixes_with_blocks_as_with_text() -> None:
    system = [{"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}]
    first = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    before = prompt(anthropic_api.to_openai(system, first))
    reply = filler.tool_call("run", SCHEMA, 50, limit_tokens=1000)
    call = {"type": "tool_use", "id": "x", "name": "run", "input": json.loads(reply.text(0, reply.tokens))}
    result = {"type": "tool_result", "tool_use_id": "x", "content": [{"type": "text", "text": "done"}]}
    second = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    after = prompt(anthropic_api.to_openai("Be short.", [{"role": "user", "content": "hi"}, *second]))
    assert after.startswith(before + reply.stream())


def test_responses_turns_are_prefixes_for_calls_and_for_words() -> None:
    first = [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]
    before = prompt(responses_api.to_messages("Be short.", first))
    call = filler.tool_call("run", SCHEMA, 50, limit_tokens=1000)
    arguments = call.text(0, call.tokens).decode()
    items: list[Any] = [*first, {"type": "function_call", "name": "run", "call_id": "x", "arguments": arguments}]
    second = prompt(
        responses_api.to_messages("Be short.", [*items, {"type": "function_call_output", "output": "done"}])
    )
    assert second.startswith(before + call.stream())
    words = filler.words(30, limit_tokens=100)
    text = {"type": "output_text", "text": words.text(0, words.tokens).decode()}
    said = {"type": "message", "role": "assistant", "content": [text]}
    third = prompt(responses_api.to_messages("Be short.", [*first, said, {"role": "user", "content": "more"}]))
    assert third.startswith(before + words.stream())


def test_token_ids_are_a_prompt_of_as_many_tokens() -> None:
    assert count_tokens(prompt_bytes([1, 2, 3])) == 3
    assert block_ids(prompt_bytes([1, 2, 3]), 1)[:16] == block_ids(prompt_bytes([1, 2]), 1)


@pytest.mark.parametrize("wrong", [None, "", [], [1, "a"], {"a": 1}, ["a", "b"], [-1]])
def test_a_prompt_of_the_wrong_kind_is_refused(wrong: object) -> None:
    with pytest.raises(ApiError) as caught:
        prompt_bytes(wrong)
    assert caught.value.status == 400


def test_a_tool_is_chosen_only_when_asked_for() -> None:
    assert chosen_tool([TOOL], "auto") is None
    assert chosen_tool([TOOL], "none") is None
    assert chosen_tool([TOOL], "required") == ("run", SCHEMA)
    assert chosen_tool([TOOL], {"type": "function", "function": {"name": "run"}}) == ("run", SCHEMA)
    with pytest.raises(ApiError, match="other"):
        chosen_tool([TOOL], {"type": "function", "function": {"name": "other"}})
