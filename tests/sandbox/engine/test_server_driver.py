"""How the simulated engine keeps its time and its size: late, busy, and with clients that do not read."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import time
from pathlib import Path
from typing import Any

import psutil

from support.engine_process import EngineProcess
from support.waiting import wait_until

STREAMS = 200
LATE_TOKENS = 4000
"""More than an engine yields while a busy machine gets round to holding it up."""
MAX_RSS_MIB = 60


def chat(content: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}], "ignore_eos": True, **more}


def lag_s(engine: EngineProcess) -> float:
    state = engine.get("/server_info").json()["internal_states"][0]
    return float(state["simulation"]["lag_s"])


def test_an_engine_that_was_held_up_says_so_and_catches_up(tmp_path: Path) -> None:
    with EngineProcess(tmp_path, "--disable-cuda-graph", "--skip-server-warmup") as engine:
        engine.wait_ready()
        stream = engine.stream("/v1/chat/completions", chat("late", max_tokens=LATE_TOKENS))
        events = stream.events()
        next(events)
        before_s = lag_s(engine)
        stopped_s = time.monotonic()
        engine.signal(signal.SIGSTOP)
        # Nothing to wait for: the process is held up for a time that the test measures.
        with socket.create_connection(("127.0.0.1", engine.port), timeout=10) as sock:
            sock.settimeout(1.5)
            sock.sendall(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
            with contextlib.suppress(TimeoutError):
                sock.recv(1)
        held_s = time.monotonic() - stopped_s
        engine.signal(signal.SIGCONT)
        # It is told of at the engine's next step, and for some seconds after that.
        wait_until(
            lambda: lag_s(engine) > before_s + held_s / 2,
            timeout_s=10,
            describe=lambda: f"it was held up for {held_s:.1f} s and says {lag_s(engine):.3f} s",
        )
        text = "".join(event["choices"][0]["delta"].get("content", "") for event in events if event != "[DONE]")
        assert len(text) == 4 * LATE_TOKENS
        # The time that it was held up is in the request's model time, and it is not longer for it.
        healthy_s = LATE_TOKENS * 0.04
        assert engine.metric("sglang:e2e_request_latency_seconds_sum") < max(healthy_s, held_s * 50) + healthy_s


def test_two_hundred_streams_fit_into_little_memory(tmp_path: Path) -> None:
    args = ("--disable-cuda-graph", "--skip-server-warmup", "--page-size", "64", "--max-running-requests", "256")
    with EngineProcess(tmp_path, *args, speed=20.0) as engine, contextlib.ExitStack() as sockets:
        engine.wait_ready()
        for number in range(STREAMS):
            sock = socket.create_connection(("127.0.0.1", engine.port), timeout=10)
            sockets.callback(sock.close)
            body = json.dumps(chat(f"{number} " + "word " * 1000, max_tokens=30_000, stream=True)).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
            sock.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        wait_until(
            lambda: engine.load()["num_running_reqs"] == STREAMS, timeout_s=60, describe=lambda: str(engine.load())
        )
        assert psutil.Process(engine.pid).memory_info().rss < MAX_RSS_MIB * 2**20
        assert engine.get("/ready").status == 200
        sockets.close()
        wait_until(lambda: engine.load()["num_total_tokens"] == 0, timeout_s=10, describe="all are dropped")
        assert engine.metric("sglang:num_aborted_requests_total") == STREAMS


def test_a_client_that_does_not_read_holds_up_nobody(tmp_path: Path) -> None:
    with EngineProcess(tmp_path, "--disable-cuda-graph", "--skip-server-warmup", speed=1000.0) as engine:
        engine.wait_ready()
        # 150,000 tokens in chunks of some hundred bytes are more than the kernel keeps for a client.
        with contextlib.closing(engine.stream("/v1/chat/completions", chat("deaf", max_tokens=150_000))):
            done = {"max_tokens": 20}
            for number in range(5):
                assert engine.post("/v1/chat/completions", chat(f"{number}") | done).status == 200
