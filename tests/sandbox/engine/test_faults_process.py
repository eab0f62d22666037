"""Faults of the machine, as they come, show and go while an engine serves."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.engine_process import EngineProcess
from support.waiting import wait_until

SPEED = 50.0


def chat(content: str = "hi", **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 8, **more}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EngineProcess]:
    args = ("--disable-cuda-graph", "--skip-server-warmup")
    with EngineProcess(tmp_path, *args, speed=SPEED) as engine:
        yield engine.wait_ready()


def answers(engine: EngineProcess, timeout_s: float = 1.0) -> bool:
    try:
        return engine.post("/v1/chat/completions", chat(), timeout_s=timeout_s).status == 200
    except TimeoutError:
        return False


def test_a_hang_is_seen_by_requests_only_and_can_pass(engine: EngineProcess) -> None:
    assert answers(engine, 10)
    stream = engine.stream("/v1/chat/completions", chat("before", max_tokens=300, ignore_eos=True))
    events = stream.events()
    next(events)
    engine.fault(hang=True)
    wait_until(lambda: not answers(engine), timeout_s=10, describe="requests hang")
    assert engine.get("/health").status == 200
    assert engine.get("/ready").status == 200
    assert engine.get("/v1/loads").status == 200
    # What the scheduler had already goes on.
    assert list(events)[-1] == "[DONE]"
    engine.fault()
    wait_until(lambda: answers(engine, 5), timeout_s=10, describe="requests are answered again")
    # Those whose clients left meanwhile were never run.
    assert engine.load()["num_total_tokens"] == 0


def test_a_request_that_waits_out_a_hang_is_served(engine: EngineProcess) -> None:
    assert answers(engine, 10)
    engine.fault(hang=True)
    wait_until(lambda: not answers(engine, 0.5), timeout_s=10, describe="requests hang")
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.append(engine.post("/v1/chat/completions", chat()).status))
    thread.start()
    thread.join(timeout=0.5)
    assert not got
    engine.fault()
    thread.join(timeout=10)
    assert got == [200]


def test_a_drain_waits_for_a_hung_request_until_its_client_leaves(engine: EngineProcess) -> None:
    assert answers(engine, 10)
    engine.fault(hang=True)
    wait_until(lambda: not answers(engine, 0.5), timeout_s=10, describe="requests hang")
    ended: list[str] = []

    def wait() -> None:
        try:
            engine.post("/v1/chat/completions", chat(), timeout_s=2)
        except TimeoutError:
            ended.append("timeout")

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(
        lambda: engine.metric("sglang:http_requests_active") > 1, timeout_s=1.5, describe="it waits", interval_s=0.01
    )
    engine.signal()
    wait_until(lambda: "Remaining number of requests 1" in engine.log(), timeout_s=2, describe="the drain waits")
    thread.join(timeout=10)
    assert ended == ["timeout"]
    assert engine.wait_exit() == 0


@pytest.mark.parametrize(
    ("fault", "says"),
    [({"crash": "oom"}, "torch.OutOfMemoryError"), ({"gpu_lost": True}, "Xid 79")],
)
def test_a_deadly_fault_ends_the_process_as_sglang_ends(
    engine: EngineProcess, fault: dict[str, Any], says: str
) -> None:
    engine.fault(**fault)
    assert engine.wait_exit() == -signal.SIGKILL
    log = engine.log()
    assert says in log
    assert "Received sigquit from a child process" in log


def test_a_slow_prefill_comes_and_goes(engine: EngineProcess) -> None:
    def prefill_s(number: int) -> float:
        """Model seconds in prefill of one prompt of its own."""
        before = engine.load()["total_prefill_busy_us"]
        body = {"prompt": f"{number} " + "word " * 1000, "max_tokens": 1}
        assert engine.post("/v1/completions", body).status == 200
        return float(engine.load()["total_prefill_busy_us"] - before) / 1e6

    numbers = iter(range(1000))
    prefill_s(next(numbers))
    healthy_s = prefill_s(next(numbers))
    engine.fault(prefill_slowdown=20.0)
    wait_until(lambda: prefill_s(next(numbers)) > 10 * healthy_s, timeout_s=10, describe="prefill is slow")
    engine.fault()
    wait_until(lambda: prefill_s(next(numbers)) < 2 * healthy_s, timeout_s=10, describe="prefill is as before")


def test_a_stalled_gpu_keeps_what_runs_and_computes_nothing(engine: EngineProcess) -> None:
    assert answers(engine, 10)
    got: list[int] = []
    body = {"prompt": "a long answer", "max_tokens": 20_000, "ignore_eos": True}
    thread = threading.Thread(target=lambda: got.append(engine.post("/v1/completions", body).status))
    thread.start()
    wait_until(lambda: engine.load()["num_running_reqs"] == 1, timeout_s=10, describe="it runs", interval_s=0.01)
    engine.fault(stall=True)

    def held() -> int | None:
        before = engine.load()
        thread.join(timeout=0.5)
        after = engine.load()
        assert after["num_running_reqs"] == 1, "it was too short"
        return after["num_used_tokens"] if before["num_used_tokens"] == after["num_used_tokens"] else None

    assert wait_until(held, timeout_s=10, describe="nothing moves")
    assert not got
    engine.fault()
    thread.join(timeout=60)
    assert got == [200]


def test_a_half_written_faults_file_is_a_healthy_machine(engine: EngineProcess) -> None:
    (engine.machine_dir / "faults.json").write_text('{"crash": "o')
    wait_until(lambda: answers(engine, 5), timeout_s=10, describe="it serves")
    assert engine.process is not None
    assert engine.process.poll() is None


def test_speculation_collapses_and_recovers(tmp_path: Path) -> None:
    args = ("--disable-cuda-graph", "--skip-server-warmup", "--speculative-algorithm", "NGRAM")
    with EngineProcess(tmp_path, *args, speed=SPEED) as engine:
        engine.wait_ready()
        numbers = iter(range(1000))

        def tokens_per_call() -> float:
            names = ("sglang:generation_tokens_total", "sglang:spec_verify_calls_total")
            before = [engine.metric(name) for name in names]
            body = {"prompt": f"{next(numbers)} hi", "max_tokens": 50, "ignore_eos": True}
            assert engine.post("/v1/completions", body).status == 200
            tokens, calls = (engine.metric(name) - old for name, old in zip(names, before, strict=True))
            return tokens / calls

        assert tokens_per_call() > 2.5
        engine.fault(accept_length=1.0)
        wait_until(lambda: tokens_per_call() < 1.1, timeout_s=10, describe="every step yields one token")
        engine.fault()
        wait_until(lambda: tokens_per_call() > 2.5, timeout_s=10, describe="speculation works again")
