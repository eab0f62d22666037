"""What clients of the four APIs read: bodies, streams, usage, tool calls, limits, and the end of a request."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from support.engine_process import EngineProcess, EventStream
from support.waiting import wait_until

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "run",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
        },
    }
]
LONG = {"max_tokens": 100_000, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    folder = tmp_path_factory.mktemp("engine")
    with EngineProcess(folder, "--max-running-requests", "16", "--weight-version", "w1", vision=True) as engine:
        yield engine.wait_ready()


def chat(content: object = "hi", **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 8, **more}


def data(stream: EventStream) -> list[Any]:
    events = list(stream.events())
    assert events[-1] == "[DONE]"
    return events[:-1]


def usage_of(events: list[Any]) -> dict[str, Any]:
    usage: dict[str, Any] = events[-1]["usage"]
    assert events[-1]["choices"] == []
    return usage


def test_a_plain_chat_completion(engine: EngineProcess) -> None:
    body = engine.post("/v1/chat/completions", chat(rid="mine")).json()
    choice = body["choices"][0]
    assert (body["id"], body["object"], body["model"]) == ("mine", "chat.completion", "m")
    assert choice["message"]["role"] == "assistant"
    assert len(choice["message"]["content"]) == 32
    assert (choice["finish_reason"], choice["matched_stop"]) == ("length", None)
    usage = body["usage"]
    assert usage["completion_tokens"] == 8
    assert usage["total_tokens"] == usage["prompt_tokens"] + 8
    assert set(usage) == {
        *("prompt_tokens", "total_tokens", "completion_tokens", "prompt_tokens_details", "reasoning_tokens"),
        "completion_tokens_details",
    }
    assert body["metadata"] == {"weight_version": "w1", "weight_versions": ["w1"]}


def test_a_reply_that_ends_by_itself_says_stop(engine: EngineProcess) -> None:
    body = engine.post("/v1/chat/completions", chat(max_tokens=20_000)).json()
    choice = body["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert isinstance(choice["matched_stop"], int)
    assert 40 <= body["usage"]["completion_tokens"] <= 8000
    # The end mark is a token that nobody sees.
    assert len(choice["message"]["content"]) == 4 * (body["usage"]["completion_tokens"] - 1)


def test_ignore_eos_and_min_tokens_lengthen_a_reply(engine: EngineProcess) -> None:
    natural = engine.post("/v1/chat/completions", chat(max_tokens=20_000)).json()["usage"]["completion_tokens"]
    ignoring = engine.post("/v1/chat/completions", chat(max_tokens=natural + 50, ignore_eos=True)).json()
    assert ignoring["usage"]["completion_tokens"] == natural + 50
    assert ignoring["choices"][0]["finish_reason"] == "length"
    at_least = engine.post("/v1/chat/completions", chat(max_tokens=20_000, min_tokens=natural + 40)).json()
    assert at_least["usage"]["completion_tokens"] == natural + 40
    assert at_least["choices"][0]["finish_reason"] == "stop"


def test_a_chat_stream(engine: EngineProcess) -> None:
    events = data(engine.stream("/v1/chat/completions", chat("stream", stream_options={"include_usage": True})))
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[-1] == {}
    assert len("".join(delta["content"] for delta in deltas[1:-1])) == 32
    reasons = [event["choices"][0]["finish_reason"] for event in events[:-1]]
    assert reasons == [None] * (len(reasons) - 1) + ["length"]
    assert all("usage" not in event for event in events[:-1])
    assert usage_of(events)["completion_tokens"] == 8
    assert len({event["id"] for event in events}) == 1
    assert {event["object"] for event in events} == {"chat.completion.chunk"}


def test_a_stream_without_include_usage_has_none(engine: EngineProcess) -> None:
    events = data(engine.stream("/v1/chat/completions", chat("plain")))
    assert all(event["choices"] and "usage" not in event for event in events)


def test_stream_and_plain_say_the_same(engine: EngineProcess) -> None:
    plain = engine.post("/v1/chat/completions", chat("same", max_tokens=40)).json()
    events = data(engine.stream("/v1/chat/completions", chat("same", max_tokens=40)))
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    assert text == plain["choices"][0]["message"]["content"]


def test_a_completion_stream_ends_with_its_last_text(engine: EngineProcess) -> None:
    body = {"model": "m", "prompt": "once", "max_tokens": 6, "stream_options": {"include_usage": True}}
    stream = engine.stream("/v1/completions", body)
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert stream.headers["transfer-encoding"] == "chunked"
    events = data(stream)
    assert all(event["usage"] is None for event in events[:-1])
    assert len("".join(event["choices"][0]["text"] for event in events[:-1])) == 24
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    assert events[-2]["choices"][0]["text"]
    assert usage_of(events)["prompt_tokens"] == 1


def test_a_completion_without_a_limit_has_16_tokens(engine: EngineProcess) -> None:
    body = engine.post("/v1/completions", {"model": "m", "prompt": "once"}).json()
    assert body["usage"]["completion_tokens"] == 16
    assert body["object"] == "text_completion"


def test_the_next_turn_finds_the_last_one_in_the_cache(engine: EngineProcess) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "turn " * 400}]
    first = engine.post("/v1/chat/completions", {"model": "m", "messages": messages, "max_tokens": 50}).json()
    messages += [first["choices"][0]["message"], {"role": "user", "content": "and on"}]
    second = engine.post("/v1/chat/completions", {"model": "m", "messages": messages, "max_tokens": 5}).json()
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    whole = first["usage"]["total_tokens"]
    # All but what lies behind the last full page, and the last token, whose KV is written with the one after it.
    assert whole - 2 <= cached <= whole
    assert second["usage"]["prompt_tokens"] > whole


def test_a_tool_call_and_its_stream(engine: EngineProcess) -> None:
    body = chat("call", tools=TOOLS, tool_choice="required", max_tokens=4000)
    message = engine.post("/v1/chat/completions", body).json()["choices"][0]
    assert message["finish_reason"] == "tool_calls"
    call = message["message"]["tool_calls"][0]
    assert (call["type"], call["function"]["name"]) == ("function", "run")
    assert json.loads(call["function"]["arguments"])["command"]
    assert message["message"]["content"] is None

    events = data(engine.stream("/v1/chat/completions", body))
    calls = [event["choices"][0]["delta"]["tool_calls"][0] for event in events[1:-1]]
    assert calls[0]["function"] == {"name": "run", "arguments": ""}
    assert calls[0]["id"] == call["id"]
    assert "".join(part["function"]["arguments"] for part in calls) == call["function"]["arguments"]
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_an_image_is_taken_inline(engine: EngineProcess) -> None:
    url = f"data:image/png;base64,{base64.b64encode(b'picture').decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What colour?"}]
    body = engine.post("/v1/chat/completions", chat(content)).json()
    assert body["usage"]["prompt_tokens"] > 256


def test_a_message(engine: EngineProcess) -> None:
    request = {"model": "m", "max_tokens": 8, "system": "Be short.", "messages": [{"role": "user", "content": "hi"}]}
    body = engine.post("/v1/messages", request).json()
    assert (body["type"], body["role"], body["stop_reason"]) == ("message", "assistant", "max_tokens")
    assert len(body["content"][0]["text"]) == 32
    assert body["usage"]["output_tokens"] == 8
    assert body["usage"]["cache_read_input_tokens"] == 0
    again = engine.post("/v1/messages", request).json()
    assert again["usage"]["cache_read_input_tokens"] == again["usage"]["input_tokens"] - 1
    counted = engine.post("/v1/messages/count_tokens", request).json()
    assert counted == {"input_tokens": body["usage"]["input_tokens"]}


def test_a_message_stream(engine: EngineProcess) -> None:
    request = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}
    events = [(name, json.loads(text)) for name, text in engine.stream("/v1/messages", request).raw()]
    assert all(name == event["type"] for name, event in events)
    kinds = [name for name, _ in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert len("".join(event["delta"]["text"] for name, event in events if name == "content_block_delta")) == 32
    assert events[-2][1]["delta"]["stop_reason"] == "max_tokens"
    assert events[-2][1]["usage"]["output_tokens"] == 8


def test_a_message_that_uses_a_tool(engine: EngineProcess) -> None:
    tool = {"name": "run", "input_schema": TOOLS[0]["function"]["parameters"]}  # type: ignore[index]
    request = {
        "model": "m",
        "max_tokens": 4000,
        "messages": [{"role": "user", "content": "call"}],
        "tools": [tool],
        "tool_choice": {"type": "any"},
    }
    body = engine.post("/v1/messages", request).json()
    assert body["stop_reason"] == "tool_use"
    block = body["content"][0]
    assert (block["type"], block["name"]) == ("tool_use", "run")
    events = [json.loads(text) for _, text in engine.stream("/v1/messages", request).raw()]
    parts = [event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta"]
    assert json.loads("".join(parts)) == block["input"]


def test_an_error_of_a_message_has_its_own_shape(engine: EngineProcess) -> None:
    answer = engine.post("/v1/messages", {"model": "m", "max_tokens": 8, "messages": []})
    assert answer.status == 400
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_response_and_its_stream(engine: EngineProcess) -> None:
    request = {"model": "m", "input": "hi", "max_output_tokens": 8}
    body = engine.post("/v1/responses", request).json()
    assert (body["object"], body["status"]) == ("response", "incomplete")
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    text = body["output"][0]["content"][0]["text"]
    assert len(text) == 32
    assert body["usage"]["output_tokens"] == 8

    events = [(name, json.loads(data)) for name, data in engine.stream("/v1/responses", request).raw()]
    assert [event["sequence_number"] for _, event in events] == list(range(len(events)))
    assert all(name == event["type"] for name, event in events)
    assert events[0][0] == "response.created"
    deltas = [event["delta"] for name, event in events if name == "response.output_text.delta"]
    assert "".join(deltas) == text
    assert events[-1][0] == "response.incomplete"
    assert events[-1][1]["response"]["usage"]["output_tokens"] == 8


def test_a_response_that_completes_and_one_that_calls(engine: EngineProcess) -> None:
    assert engine.post("/v1/responses", {"model": "m", "input": "hi"}).json()["status"] == "completed"
    tool = {"type": "function", "name": "run", "parameters": TOOLS[0]["function"]["parameters"]}  # type: ignore[index]
    request = {"model": "m", "input": "call", "tools": [tool], "tool_choice": "required"}
    item = engine.post("/v1/responses", request).json()["output"][0]
    assert (item["type"], item["name"]) == ("function_call", "run")
    events = [json.loads(text) for _, text in engine.stream("/v1/responses", request).raw()]
    deltas = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert "".join(deltas) == item["arguments"]


def test_responses_are_not_kept(engine: EngineProcess) -> None:
    assert engine.get("/v1/responses/resp_1").status == 404
    answer = engine.post("/v1/responses", {"model": "m", "input": "hi", "previous_response_id": "resp_1"})
    assert answer.status == 400


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_longer_than_the_context_is_400(engine: EngineProcess, stream: bool) -> None:
    body = {"model": "m", "prompt": "abcd" * 200_000, "max_tokens": 1, "stream": stream}
    answer = engine.post("/v1/completions", body)
    assert answer.status == 400
    assert answer.json() == {
        "object": "error",
        "message": "The input (200000 tokens) is longer than the model's context length (163840 tokens).",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    }


def test_prompt_and_output_together_over_the_context_are_400(engine: EngineProcess) -> None:
    answer = engine.post("/v1/completions", {"model": "m", "prompt": "abcd" * 100_000, "max_tokens": 100_000})
    assert answer.status == 400
    assert "200000" in answer.json()["message"]


def test_a_request_id_in_use_is_refused(engine: EngineProcess) -> None:
    stream = engine.stream("/v1/chat/completions", chat("long", rid="twice") | LONG)
    answer = engine.post("/v1/chat/completions", chat(rid="twice"))
    assert (answer.status, "twice" in answer.json()["message"]) == (400, True)
    stream.close()
    wait_until(lambda: idle(engine), timeout_s=10, describe="the stream is dropped")
    assert engine.post("/v1/chat/completions", chat(rid="twice")).status == 200


def idle(engine: EngineProcess) -> bool:
    load = engine.load()
    return not (load["num_running_reqs"] or load["num_waiting_reqs"] or load["num_total_tokens"])


def test_a_client_that_leaves_a_stream_frees_its_place(engine: EngineProcess) -> None:
    aborted = engine.metric("sglang:num_aborted_requests_total")
    stream = engine.stream("/v1/chat/completions", chat("leave") | LONG)
    next(stream.events())
    wait_until(lambda: engine.load()["num_running_reqs"] == 1, timeout_s=10, describe="it runs", interval_s=0.01)
    stream.close()
    wait_until(lambda: idle(engine), timeout_s=1.5, describe="its place is free", interval_s=0.005)
    assert engine.metric("sglang:num_aborted_requests_total") == aborted + 1


def test_a_client_that_leaves_a_plain_request_is_noticed_later(engine: EngineProcess) -> None:
    aborted = engine.metric("sglang:num_aborted_requests_total")
    with pytest.raises(TimeoutError):
        engine.post("/v1/chat/completions", chat("leave plain") | LONG, timeout_s=0.3)
    assert not idle(engine)
    wait_until(lambda: idle(engine), timeout_s=10, describe="its place is free")
    assert engine.metric("sglang:num_aborted_requests_total") == aborted + 1


def test_an_abort_ends_a_stream_with_its_usage(engine: EngineProcess) -> None:
    body = chat("abort", rid="to-abort", stream_options={"include_usage": True}) | LONG
    stream = engine.stream("/v1/chat/completions", body)
    events = stream.events()
    next(events)
    answer = engine.post("/abort_request", {"rid": "to-abort"})
    assert (answer.status, answer.body) == (200, b"")
    rest = list(events)
    assert rest[-1] == "[DONE]"
    assert rest[-3]["choices"][0]["finish_reason"] == "abort"
    assert rest[-2]["usage"]["completion_tokens"] > 0


def test_all_requests_can_be_aborted(engine: EngineProcess) -> None:
    streams = [engine.stream("/v1/chat/completions", chat(f"all {n}") | LONG) for n in range(3)]
    assert engine.post("/abort_request", {"abort_all": True}).status == 200
    for stream in streams:
        assert list(stream.events())[-1] == "[DONE]"
    assert engine.post("/abort_request", {"rid": "unknown"}).status == 200
    assert engine.post("/abort_request", {}).status == 400


def test_caches_are_flushed_only_while_nothing_runs(engine: EngineProcess) -> None:
    body = chat("flush " * 100)
    engine.post("/v1/chat/completions", body)
    stream = engine.stream("/v1/chat/completions", chat("busy") | LONG)
    assert engine.post("/flush_cache", {}).status == 400
    stream.close()
    wait_until(lambda: idle(engine), timeout_s=10, describe="the stream is dropped")
    assert engine.post("/flush_cache", {}).status == 200
    again = engine.post("/v1/chat/completions", body).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_many_streams_at_once_are_complete(engine: EngineProcess) -> None:
    results: dict[int, list[Any]] = {}

    def read(number: int) -> None:
        body = chat(f"many {number}", stream_options={"include_usage": True}) | {"max_tokens": 60, "ignore_eos": True}
        results[number] = data(engine.stream("/v1/chat/completions", body))

    threads = [threading.Thread(target=read, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(results) == 24
    for events in results.values():
        text = "".join(event["choices"][0]["delta"].get("content", "") for event in events[:-1])
        assert len(text) == 240
        assert usage_of(events)["completion_tokens"] == 60
