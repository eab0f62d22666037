"""Responses, load and refusals of a real SGLang, point by point (readings 1, 2, 3, 7, 8 and 10)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.engine import exposition
from contract.engine.asking import (
    Background,
    completion,
    prompt,
    read_stream,
    streaming,
    wait_idle,
    wait_running,
)
from support.engine_process import EngineProcess
from support.waiting import wait_until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "ignore_eos": True}
FULL = {"object": "error", "message": "The request queue is full.", "type": "503", "param": None, "code": 503}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """Four slots and a queue of two; every test leaves it idle."""
    folder = tmp_path_factory.mktemp("serving")
    flags = ("--max-running-requests", "4", "--max-queued-requests", "2", "--skip-server-warmup")
    with EngineProcess(folder, *flags, speed=50) as process:
        yield process.wait_ready()


@pytest.fixture(autouse=True)
def _idle(engine: EngineProcess) -> Iterator[None]:
    yield
    wait_idle(engine)


def sample(engine: EngineProcess, name: str, **labels: str) -> float:
    """A sample of /metrics, 0 when there is none."""
    return exposition.value(engine.get("/metrics").body.decode(), f"sglang:{name}", **labels) or 0.0


# Reading 7: shapes.


def test_a_completion_has_the_real_keys(engine: EngineProcess) -> None:
    answer = engine.post("/v1/completions", completion(20, 5))
    body = answer.json()
    assert {"id", "object", "created", "model", "choices", "usage", "metadata"} <= set(body)
    (choice,) = body["choices"]
    assert choice["finish_reason"] in ("length", "stop")
    assert "matched_stop" in choice
    assert set(body["usage"]) == {
        *("prompt_tokens", "total_tokens", "completion_tokens", "prompt_tokens_details"),
        *("reasoning_tokens", "completion_tokens_details"),
    }
    assert set(body["metadata"]) == {"weight_version", "weight_versions"}
    assert answer.headers["server"] == "uvicorn"
    assert not any("request-id" in name.lower() for name in answer.headers)


def test_a_stream_ends_with_finish_reason_then_usage_then_done(engine: EngineProcess) -> None:
    events = read_stream(engine, completion(20, 6, stream_options={"include_usage": True}))
    *chunks, usage, done = events
    assert done == "[DONE]"
    assert all(chunk["usage"] is None for chunk in chunks)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 6
    assert usage["usage"]["prompt_tokens_details"] is not None


def test_a_stream_without_include_usage_has_no_usage_chunk(engine: EngineProcess) -> None:
    events = read_stream(engine, completion(20, 6))
    assert all(event["choices"] for event in events[:-1])


def test_zero_cached_tokens_are_shown(engine: EngineProcess) -> None:
    usage = engine.post("/v1/completions", completion(20, 2, name="z")).json()["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}


def test_a_chat_streams_finish_chunk_has_an_empty_delta(engine: EngineProcess) -> None:
    with streaming(engine, {**CHAT, "stream_options": {"include_usage": True}}, "/v1/chat/completions") as stream:
        headers = {name.lower(): value for name, value in stream.headers.items()}
        *chunks, usage, done = list(stream.events())
    assert headers["transfer-encoding"] == "chunked"
    assert headers["content-type"].startswith("text/event-stream")
    assert done == "[DONE]"
    assert "usage" not in chunks[0]
    (last,) = chunks[-1]["choices"]
    assert last["finish_reason"] == "length"
    assert not {key: value for key, value in last["delta"].items() if value}
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_beyond_the_context_is_a_400(engine: EngineProcess, stream: bool) -> None:
    answer = engine.post("/v1/completions", completion(200_000, 5, stream=stream))
    assert answer.status == 400
    assert answer.json() == {
        "object": "error",
        "message": "The input (200000 tokens) is longer than the model's context length (163840 tokens).",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    }


def test_a_client_that_hangs_up_a_stream_ends_it(engine: EngineProcess) -> None:
    aborted = sample(engine, "num_aborted_requests_total")
    with streaming(engine, completion(20, 100_000)):
        wait_running(engine, 1)
    wait_until(lambda: engine.load()["num_running_reqs"] == 0, timeout_s=1, describe="aborted", interval_s=0.005)
    assert sample(engine, "num_aborted_requests_total") == aborted + 1


def test_a_client_that_gives_up_on_a_plain_request_is_noticed_by_and_by(engine: EngineProcess) -> None:
    with pytest.raises(TimeoutError):
        engine.post("/v1/completions", completion(20, 100_000), timeout_s=0.5)
    assert engine.load()["num_running_reqs"] == 1
    wait_until(lambda: engine.load()["num_running_reqs"] == 0, timeout_s=6, describe="aborted", interval_s=0.02)


def test_a_queued_request_whose_client_left_is_removed(engine: EngineProcess) -> None:
    running = [Background(engine, "/v1/completions", completion(20, 20_000, name=name)) for name in "abcd"]
    wait_running(engine, 4)
    with pytest.raises(TimeoutError):
        engine.post("/v1/completions", completion(20, 5), timeout_s=0.3)
    wait_running(engine, 4, waiting=1)
    wait_running(engine, 4, waiting=0)
    engine.post("/abort_request", {"abort_all": True})
    for request in running:
        assert request.answer().json()["choices"][0]["finish_reason"] == "abort"


def test_abort_request_ends_a_stream_with_usage_and_done(engine: EngineProcess) -> None:
    body = completion(20, 100_000, rid="mine", stream_options={"include_usage": True})
    with streaming(engine, body) as stream:
        wait_running(engine, 1)
        answer = engine.post("/abort_request", {"rid": "mine"})
        assert (answer.status, answer.body) == (200, b"")
        *chunks, usage, done = list(stream.events())
    assert done == "[DONE]"
    assert chunks[-1]["choices"][0]["finish_reason"] == "abort"
    assert usage["usage"]["completion_tokens"] < 100_000


# Reading 8: a full queue.


@pytest.fixture
def full(engine: EngineProcess) -> Iterator[EngineProcess]:
    """Four run and two wait."""
    asked = []
    for index in range(6):
        asked.append(
            Background(engine, "/v1/completions", completion(50, 20_000, name="abcdef"[index], rid=f"f{index}"))
        )
        wait_running(engine, min(index + 1, 4), waiting=max(0, index - 3))
    yield engine
    engine.post("/abort_request", {"abort_all": True})
    for request in asked:
        request.join()


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", completion(20, 5)), ("/v1/chat/completions", CHAT)])
def test_a_full_queue_refuses_plain_requests_with_503(full: EngineProcess, path: str, body: dict[str, Any]) -> None:
    answer = full.post(path, body)
    assert answer.status == 503
    assert answer.json() == FULL
    assert "retry-after" not in {name.lower() for name in answer.headers}


def test_a_full_queue_refuses_streams_inside_a_200(full: EngineProcess) -> None:
    before = sample(full, "http_responses_total", endpoint="/v1/completions", status_code="200")
    with streaming(full, completion(20, 5, stream_options={"include_usage": True})) as stream:
        assert stream.status == 200
        error, usage, done = list(stream.events())
    assert error["error"] == FULL | {"type": "SERVICE_UNAVAILABLE"}
    assert usage["usage"]["completion_tokens"] == usage["usage"]["prompt_tokens"] == 0
    assert done == "[DONE]"
    after = sample(full, "http_responses_total", endpoint="/v1/completions", status_code="200")
    assert after == before + 1


def test_health_and_ready_stay_green_with_a_full_queue(full: EngineProcess) -> None:
    assert full.get("/health").status == 200
    assert full.get("/ready").status == 200


def test_a_full_queue_is_seen_in_loads(full: EngineProcess) -> None:
    load = full.load()
    assert (load["num_running_reqs"], load["num_waiting_reqs"]) == (4, 2)
    assert load["num_total_tokens"] == load["num_used_tokens"] + 100
    assert load["queues"]["waiting"] == 2


# Readings 2 and 1: a long prompt.


def test_a_long_prompt_is_neither_running_nor_waiting_and_holds_up_health(engine: EngineProcess) -> None:
    # 0.24 ms a token and 8192 tokens a chunk: 2 model seconds, made 4 wall seconds.
    engine.fault(prefill_slowdown=100)
    names = iter("ghijklmnopqrstuvwx")
    wait_until(
        lambda: engine.post("/v1/completions", completion(1000, 1, name=next(names))).took_s > 0.25,
        timeout_s=10,
        describe="prompts are slow now",
    )
    asked = Background(engine, "/v1/completions", completion(20_000, 1, name="+", rid="long"))
    try:
        wait_until(lambda: engine.load()["num_used_tokens"] > 0, timeout_s=10, describe="prefill", interval_s=0.005)
        health = engine.get("/health")
        load = engine.load()
        assert load["num_used_tokens"] > 0, "the test came too late"
        assert (load["num_running_reqs"], load["num_waiting_reqs"]) == (0, 0)
        text = engine.get("/metrics").body.decode()
        assert exposition.value(text, "sglang:num_running_reqs") == 0
        assert exposition.value(text, "sglang:num_queue_reqs") == 0
        assert health.status == 200
        assert health.took_s >= 1.9, "it did not wait for the chunk in flight"
        assert engine.get("/ready").took_s < 0.5
    finally:
        engine.fault()
        engine.post("/abort_request", {"rid": "long"})
        asked.join()


# Reading 3: counters.


def test_requests_and_tokens_are_counted_by_streaming(engine: EngineProcess) -> None:
    before = {kind: sample(engine, "num_requests_total", is_streaming=kind) for kind in ("true", "false")}
    prompt_tokens = sample(engine, "prompt_tokens_total", is_streaming="true")
    read_stream(engine, completion(77, 5))
    engine.post("/v1/completions", completion(77, 5))
    for kind in ("true", "false"):
        assert sample(engine, "num_requests_total", is_streaming=kind) == before[kind] + 1
    assert sample(engine, "prompt_tokens_total", is_streaming="true") == prompt_tokens + 77


def test_http_calls_are_counted_by_endpoint_method_and_status(engine: EngineProcess) -> None:
    labels = {"endpoint": "/ready", "method": "GET"}
    before = sample(engine, "http_requests_total", **labels)
    engine.get("/ready")
    assert sample(engine, "http_requests_total", **labels) == before + 1
    assert sample(engine, "http_responses_total", **labels, status_code="200") == before + 1
    assert sample(engine, "http_requests_active", **labels) == 0
    assert sample(engine, "http_requests_active", endpoint="/metrics", method="GET") == 1


def test_latencies_in_metrics_are_in_model_seconds(engine: EngineProcess) -> None:
    before = sample(engine, "e2e_request_latency_seconds_sum", is_streaming="false")
    answer = engine.post("/v1/completions", completion(50, 200, name="y"))
    took_s = sample(engine, "e2e_request_latency_seconds_sum", is_streaming="false") - before
    # 199 decode steps of some 35 ms; on the wall they took a fiftieth.
    assert 3 < took_s < 15
    assert answer.took_s < took_s


def test_flush_is_refused_while_requests_run(engine: EngineProcess) -> None:
    with streaming(engine, completion(20, 100_000)):
        wait_running(engine, 1)
        assert engine.post("/flush_cache", {}).status == 400
    wait_idle(engine)
    assert engine.post("/flush_cache", {}).status == 200


# Reading 10: tensor parallelism.


def test_two_ranks_are_two_accelerators_and_one_live_series(tmp_path: Path) -> None:
    flags = ("--tp-size", "2", "--skip-server-warmup", "--enable-hierarchical-cache", "--hicache-size", "4")
    with EngineProcess(tmp_path, *flags, gpus=2, speed=200) as engine:
        engine.wait_ready()
        engine.post("/v1/completions", {**completion(20, 2), "prompt": prompt(20)})
        assert engine.get("/v1/loads").json()["num_accelerators"] == 2
        families = exposition.parse(engine.get("/metrics").body.decode())
        ranks = [dict(labels)["tp_rank"] for _, labels in families["sglang:max_total_num_tokens"].samples]
        assert ranks == ["0", "1"]
        for name in ("hicache_host_total_tokens", "kv_evictable_tokens", "num_running_reqs"):
            assert len(families[f"sglang:{name}"].samples) == 1
