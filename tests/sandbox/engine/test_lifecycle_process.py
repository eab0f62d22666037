"""Start, probes and ends of the simulated engine, as a real SGLang showed them."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import time
from pathlib import Path
from typing import Any

from support.engine_process import EngineProcess
from support.waiting import wait_until

# Model seconds per second: a drain looks every 0.1 s.
SPEED = 50.0


def chat(content: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 8, **more}


def start(folder: Path, *args: str, **options: Any) -> EngineProcess:
    return EngineProcess(folder, "--disable-cuda-graph", *args, **({"speed": SPEED} | options))


def outcome(engine: EngineProcess, path: str, timeout_s: float) -> str:
    """How a GET ends: a status, "silence" (connected, no answer) or "refused"."""
    try:
        return str(engine.get(path, timeout_s=timeout_s).status)
    except ConnectionRefusedError:
        return "refused"
    except OSError:
        return "silence"


def test_the_port_opens_with_503_and_reports_that_already_work(tmp_path: Path) -> None:
    with start(tmp_path) as engine:
        assert not engine.connects()
        engine.wait_open()
        first = [engine.get(path).status for path in ("/ready", "/health", "/v1/loads", "/metrics", "/v1/models")]
        assert first == [503, 503, 200, 200, 200]
        engine.wait_ready()
        assert engine.get("/health").status == 200
        assert engine.metric("sglang:num_requests_total") == 1


def test_without_a_warm_up_the_first_answer_is_ready(tmp_path: Path) -> None:
    with start(tmp_path, "--skip-server-warmup") as engine:
        engine.wait_open()
        assert engine.get("/ready").status == 200
        assert engine.metric("sglang:num_requests_total") == 0


def test_health_takes_a_second_and_a_probe_is_no_request(tmp_path: Path) -> None:
    with start(tmp_path, "--skip-server-warmup") as engine:
        engine.wait_ready()
        for path in ("/health", "/health_generate"):
            answer = engine.get(path)
            assert answer.status == 200
            assert 1.0 <= answer.took_s < 3.0
        assert engine.get("/ready").took_s < 0.5
        assert engine.metric("sglang:num_requests_total") == 0
        assert engine.metric("sglang:num_aborted_requests_total") == 0
        assert engine.metric("sglang:queue_time_seconds_count") == 2
        assert engine.load()["num_total_tokens"] == 0


def test_health_without_generation_is_cheap(tmp_path: Path) -> None:
    with start(tmp_path, "--skip-server-warmup", env={"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0"}) as engine:
        engine.wait_ready()
        assert engine.get("/health").took_s < 0.5
        assert engine.get("/health_generate").took_s >= 1.0


def test_the_first_long_prompt_and_the_first_image_pay_once(tmp_path: Path) -> None:
    with start(tmp_path, "--skip-server-warmup", vision=True) as engine:
        engine.wait_ready()
        engine.post("/v1/chat/completions", chat("hi"))
        first, second = (ttft_s(engine, chat(str(n) + "long " * 20_000)) for n in (1, 2))
        assert first > second + 5
        image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,YWJj"}}]
        first, second = (ttft_s(engine, chat("", messages=[{"role": "user", "content": image}])) for _ in range(2))
        assert first > second + 20


def ttft_s(engine: EngineProcess, body: dict[str, Any]) -> float:
    """Model seconds to the first token of a request."""
    before_s = engine.metric("sglang:time_to_first_token_seconds_sum")
    assert engine.post("/v1/chat/completions", body).status == 200
    return engine.metric("sglang:time_to_first_token_seconds_sum") - before_s


def test_a_full_queue_refuses_with_503_or_inside_a_stream(tmp_path: Path) -> None:
    args = ("--max-running-requests", "1", "--max-queued-requests", "1", "--skip-server-warmup")
    with start(tmp_path, *args) as engine, contextlib.ExitStack() as streams:
        engine.wait_ready()
        long = {"max_tokens": 100_000, "ignore_eos": True}
        running = engine.stream("/v1/chat/completions", chat("run") | long)
        streams.callback(running.close)
        next(running.events())
        waiting = spawn_waiting(engine, streams, chat("wait") | long)
        wait_until(lambda: engine.load()["num_waiting_reqs"] == 1, timeout_s=10, describe="one waits")

        answer = engine.post("/v1/chat/completions", chat("refused"))
        assert answer.status == 503
        message = "The request queue is full."
        assert answer.json() == {"object": "error", "message": message, "type": "503", "param": None, "code": 503}
        assert "retry-after" not in answer.headers

        stream = engine.stream("/v1/completions", {"prompt": "x", "stream_options": {"include_usage": True}})
        assert stream.status == 200
        error, usage, done = stream.events()
        assert error["error"]["type"] == "SERVICE_UNAVAILABLE"
        assert error["error"]["message"] == message
        assert usage["usage"]["total_tokens"] == 0
        assert done == "[DONE]"

        assert engine.get("/health").status == 200
        assert engine.get("/ready").status == 200
        del waiting


def spawn_waiting(engine: EngineProcess, streams: contextlib.ExitStack, body: dict[str, Any]) -> Any:
    """A stream whose head will not come before a place is free: only its request is sent."""
    connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=30)
    streams.callback(connection.close)
    connection.request(
        "POST", "/v1/chat/completions", json.dumps(body | {"stream": True}), {"Content-Type": "application/json"}
    )
    return connection


def test_sigterm_lets_streams_end_and_still_takes_requests(tmp_path: Path) -> None:
    with start(tmp_path, "--skip-server-warmup") as engine:
        engine.wait_ready()
        stream = engine.stream("/v1/chat/completions", chat("drain", max_tokens=2000, ignore_eos=True))
        events = stream.events()
        next(events)
        engine.signal()
        wait_until(lambda: engine.get("/ready").status == 503, timeout_s=2, describe="503", interval_s=0.01)
        assert engine.get("/health").took_s < 0.5
        assert engine.get("/health").status == 503
        assert engine.get("/v1/loads").status == 200
        assert engine.post("/v1/chat/completions", chat("late")).status == 200
        rest = list(events)
        assert rest[-1] == "[DONE]"
        text = "".join(event["choices"][0]["delta"].get("content", "") for event in rest[:-1])
        assert len(text) == 8000
        assert engine.wait_exit() == 0
        assert "Gracefully exiting... Remaining number of requests 1." in engine.log()


def test_the_end_takes_connections_and_answers_nothing(tmp_path: Path) -> None:
    # Slow enough to see the end: it takes 0.1 to 0.4 s.
    with start(tmp_path, "--skip-server-warmup", speed=20.0) as engine:
        engine.wait_ready()
        engine.signal()
        seen: list[str] = []

        def gone() -> bool:
            result = outcome(engine, "/ready", 0.05)
            if result not in seen[-1:]:
                seen.append(result)
            return result == "refused"

        wait_until(gone, timeout_s=20, describe=lambda: f"refused, after {seen}", interval_s=0.001)
        assert seen[-2:] == ["silence", "refused"]
        assert "200" not in seen[1:]
        assert engine.wait_exit() == 0


def test_a_second_sigterm_changes_nothing(tmp_path: Path) -> None:
    with start(tmp_path, "--skip-server-warmup") as engine:
        engine.wait_ready()
        stream = engine.stream("/v1/chat/completions", chat("drain", max_tokens=1000, ignore_eos=True))
        engine.signal()
        engine.signal()
        assert list(stream.events())[-1] == "[DONE]"
        assert engine.wait_exit() == 0


def test_after_a_failed_health_check_sigterm_neither_drains_nor_ends_soon(tmp_path: Path) -> None:
    with start(tmp_path, "--skip-server-warmup", env={"SGLANG_HEALTH_CHECK_TIMEOUT": "2"}) as engine:
        engine.wait_ready()
        engine.fault(prefill_slowdown=1e8)
        wait_until(lambda: slow(engine), timeout_s=10, describe="the fault has come")
        assert engine.get("/health").status == 503
        assert engine.get("/ready").status == 503
        engine.signal()
        signalled_s = time.monotonic()
        wait_until(lambda: outcome(engine, "/ready", 0.3) == "silence", timeout_s=10, describe="HTTP is dead")
        assert engine.wait_exit() == -signal.SIGKILL
        assert time.monotonic() - signalled_s > 60 / SPEED
        assert "Signal SIGTERM received while health check failed. Force exiting." in engine.log()


def slow(engine: EngineProcess) -> bool:
    """Whether a prompt of some tokens is no longer answered at once; the request is dropped."""
    try:
        engine.post("/v1/completions", {"prompt": "probe " * 20, "max_tokens": 1}, timeout_s=0.5)
    except TimeoutError:
        return True
    return False


def test_a_forced_shutdown_waits_for_clients_and_sends_them_nothing(tmp_path: Path) -> None:
    with start(tmp_path, "--skip-server-warmup", env={"SGL_FORCE_SHUTDOWN": "1"}) as engine:
        engine.wait_ready()
        stream = engine.stream("/v1/chat/completions", chat("cut", max_tokens=100_000, ignore_eos=True))
        next(stream.events())
        engine.signal()
        wait_until(lambda: not engine.connects(), timeout_s=20, describe="the port is closed")
        assert engine.process is not None
        assert engine.process.poll() is None
        stream.close()
        assert engine.wait_exit() == 0
        assert "Force exiting" in engine.log()


def test_keep_alive_is_what_the_environment_says(tmp_path: Path) -> None:
    with start(tmp_path, "--skip-server-warmup", env={"SGLANG_TIMEOUT_KEEP_ALIVE": "1"}) as engine:
        engine.wait_ready()
        with socket.create_connection(("127.0.0.1", engine.port), timeout=10) as sock:
            sock.sendall(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
            assert sock.recv(4096).startswith(b"HTTP/1.1 200")
            assert sock.recv(4096) == b""
