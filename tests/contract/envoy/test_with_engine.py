"""Envoy before the simulated SGLang: the scan against a whole server's own bytes, and a refusal inside a 200."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.engine_process import SERVED_NAME, EngineProcess
from support.envoy_process import EnvoyProcess

MESSAGES = [{"role": "user", "content": "Count the words in this sentence, please. " * 20}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "stream_options": {"include_usage": True}},
    "/v1/completions": {"prompt": MESSAGES[0]["content"], "stream_options": {"include_usage": True}},
    "/v1/messages": {"messages": MESSAGES},
    "/v1/responses": {"input": MESSAGES},
}
JSON = {"content-type": "application/json"}
LIMITS = {"/v1/responses": "max_output_tokens"}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    folder: Path = tmp_path_factory.mktemp("engine")
    args = ("--max-running-requests", "1", "--max-queued-requests", "1")
    with EngineProcess(folder, *args) as engine:
        yield engine.wait_ready()


@pytest.fixture
def envoy(engine: EngineProcess) -> Iterator[EnvoyProcess]:
    with EnvoyProcess(engines=[f"127.0.0.1:{engine.port}"]) as envoy:
        yield envoy


def body(path: str, tokens: int, *, stream: bool) -> dict[str, Any]:
    """A request for so many tokens."""
    own = {name: value for name, value in BODIES[path].items() if stream or name != "stream_options"}
    return {"model": SERVED_NAME, **own, LIMITS.get(path, "max_tokens"): tokens, "stream": stream, "ignore_eos": True}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", BODIES)
def test_the_log_says_what_an_answer_cost(envoy: EnvoyProcess, path: str, stream: bool) -> None:
    for turn in (1, 2):
        reply = envoy.request("POST", path, body(path, 8, stream=stream), headers=JSON)
        assert reply.status == 200, reply.body
        entry = envoy.wait_logged(turn)[-1]
        assert entry["finish"] in ("length", "stop"), (entry, reply.body)
        assert int(entry["prompt_tokens"]) > 20
        assert int(entry["completion_tokens"]) >= 1
        assert entry["refused"] == "-"
    # The second time, the prompt was there.
    assert 0 < int(entry["cached_tokens"]) < int(entry["prompt_tokens"])
    assert envoy.log() == ""


def test_a_stream_that_the_engine_refuses_with_200_is_marked(envoy: EnvoyProcess) -> None:
    path = "/v1/chat/completions"
    replies: list[bytes] = []

    def ask() -> None:
        reply = envoy.request("POST", path, body(path, 3000, stream=True), headers=JSON, timeout_s=60)
        replies.append(reply.body)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    refused = [reply for reply in replies if b"queue is full" in reply]
    entries = envoy.wait_logged(8)
    assert {entry["status"] for entry in entries} == {"200"}
    assert 0 < len(refused) < 8
    assert len(refused) == len([entry for entry in entries if entry["refused"] == "true"])
