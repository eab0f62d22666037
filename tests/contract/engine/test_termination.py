"""The ends of a real SGLang, point by point (reading 1)."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

from contract.engine.asking import Background, completion, streaming, wait_running
from support.engine_process import EngineProcess
from support.waiting import wait_until

SPEED = 20.0


def test_sigterm_is_seen_at_once_and_the_drain_serves_everybody(tmp_path: Path) -> None:
    with EngineProcess(tmp_path, "--max-running-requests", "4", speed=SPEED) as engine:
        engine.wait_ready()
        with streaming(engine, completion(10, 1500, stream_options={"include_usage": True})) as stream:
            events: list[Any] = []
            reader = threading.Thread(target=lambda: events.extend(stream.events()))
            reader.start()
            wait_running(engine, 1)
            engine.signal(signal.SIGTERM)
            # The signal is for the process, not for a request: look until it has arrived.
            wait_until(lambda: engine.get("/ready").status == 503, timeout_s=1, describe="ready", interval_s=0.005)
            health = engine.get("/health")
            assert health.status == 503
            assert health.took_s < 0.9, "a health check that takes a second has asked the scheduler"
            assert engine.get("/v1/loads").status == 200
            late = engine.post("/v1/completions", completion(10, 5, name="q"))
            assert late.status == 200
            assert late.json()["usage"]["completion_tokens"] == 5
            reader.join(60)
        assert events[-1] == "[DONE]"
        assert events[-2]["usage"]["completion_tokens"] == 1500
        assert engine.wait_exit(30) == 0


def test_the_queue_and_what_still_comes_are_served_after_sigterm(tmp_path: Path) -> None:
    with EngineProcess(tmp_path, "--max-running-requests", "1", speed=SPEED) as engine:
        engine.wait_ready()
        first = Background(engine, "/v1/completions", completion(10, 1500, name="a"))
        wait_running(engine, 1)
        queued = Background(engine, "/v1/completions", completion(10, 20, name="b"))
        wait_running(engine, 1, waiting=1)
        engine.signal(signal.SIGTERM)
        wait_until(lambda: engine.get("/ready").status == 503, timeout_s=2, describe="ready", interval_s=0.005)
        late = Background(engine, "/v1/completions", completion(10, 20, name="c"))
        assert [request.answer().status for request in (first, queued, late)] == [200, 200, 200]
        assert engine.wait_exit(30) == 0


def test_an_idle_server_takes_connections_without_answering_before_it_exits_0(tmp_path: Path) -> None:
    # Nothing answers for 2 to 8 model seconds: at least a quarter of a second here.
    with EngineProcess(tmp_path, "--skip-server-warmup", "--disable-cuda-graph", speed=8) as engine:
        engine.wait_ready()
        engine.signal(signal.SIGTERM)
        wait_until(lambda: _silent(engine), timeout_s=20, describe=engine.log, interval_s=0.01)
        assert engine.wait_exit(20) == 0
        assert not engine.connects()


def test_a_forced_shutdown_waits_for_a_client_that_holds_its_connection(tmp_path: Path) -> None:
    with EngineProcess(tmp_path, env={"SGL_FORCE_SHUTDOWN": "1"}, speed=SPEED) as engine:
        engine.wait_ready()
        with streaming(engine, completion(10, 100_000)):
            wait_running(engine, 1)
            engine.signal(signal.SIGTERM)
            wait_until(lambda: not engine.connects(), timeout_s=20, describe=engine.log)
            assert "Force exiting" in engine.log()
            assert _alive(engine)
        engine.wait_exit(20)


def test_after_a_failed_health_check_sigterm_neither_drains_nor_ends_soon(tmp_path: Path) -> None:
    with EngineProcess(tmp_path, env={"SGLANG_HEALTH_CHECK_TIMEOUT": "2"}, speed=SPEED) as engine:
        engine.wait_ready()
        engine.fault(prefill_slowdown=3000)
        # The fault is noticed by and by; a prompt that is served before it was leaves health green.
        stuck: list[Background] = []

        def unhealthy() -> bool:
            stuck.append(Background(engine, "/v1/completions", completion(20_000, 2, name=chr(97 + len(stuck)))))
            return engine.get("/health").status == 503

        wait_until(unhealthy, timeout_s=40, describe="a chunk that takes longer than the limit of health checks")
        assert engine.get("/ready").status == 503
        engine.signal(signal.SIGTERM)
        wait_until(lambda: _silent(engine), timeout_s=10, describe=engine.log, interval_s=0.05)
        assert "health check failed. Force exiting" in engine.log()
        assert _alive(engine)
        engine.kill()
        for request in stuck:
            request.join()
        assert stuck[-1].failure is not None


def _alive(engine: EngineProcess) -> bool:
    return engine.process is not None and engine.process.poll() is None


def _silent(engine: EngineProcess) -> bool:
    """Whether a connection is taken and nothing comes back."""
    try:
        engine.get("/ready", timeout_s=0.1)
    except TimeoutError:
        return engine.connects()
    except OSError:
        return False
    return False
