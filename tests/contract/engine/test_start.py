"""The start of a real SGLang, point by point (readings 1, 2 and 3)."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from contract.engine import exposition
from support.engine_process import EngineProcess
from support.waiting import wait_until

REPORTS = ("/v1/loads", "/metrics", "/v1/models", "/model_info", "/server_info")


def test_reports_are_200_and_every_gauge_is_there_while_probes_are_still_503(tmp_path: Path) -> None:
    # At this speed the first prompt of the warm-up takes about a second.
    with EngineProcess(tmp_path, speed=20) as engine:
        engine.wait_open()
        probes = [engine.get(path).status for path in ("/ready", "/health")]
        statuses = {path: engine.get(path).status for path in REPORTS}
        scrape = engine.get("/metrics").body.decode()
        probes.append(engine.get("/ready").status)
        assert probes == [503, 503, 503], f"the test came too late, or /ready too early:\n{engine.log()}"
        assert set(statuses.values()) == {200}, statuses
        families = exposition.parse(scrape)
        assert len(families) == 69
        assert list(families["sglang:num_running_reqs"].samples.values()) == [0.0]
        engine.wait_ready()
        assert engine.get("/health").status == 200


def test_with_warm_up_skipped_the_first_answer_of_ready_is_200(tmp_path: Path) -> None:
    with EngineProcess(tmp_path, "--skip-server-warmup") as engine:
        engine.wait_open()
        assert engine.get("/ready").status == 200


def test_the_port_is_closed_while_it_loads_and_sigterm_ends_it_by_default(tmp_path: Path) -> None:
    with EngineProcess(tmp_path, speed=1) as engine:
        wait_until(lambda: "Init torch distributed begin" in engine.log(), timeout_s=20, describe=engine.log)
        assert not engine.connects()
        engine.signal(signal.SIGTERM)
        assert engine.wait_exit(10) == -signal.SIGTERM


def test_sigterm_while_it_loads_as_pid_1_is_ignored(tmp_path: Path) -> None:
    with EngineProcess(tmp_path, speed=30) as engine:
        pass  # Only for its folder and command line: it must start in a PID namespace of its own.
    command = ["unshare", "--pid", "--fork", "--kill-child", *engine.argv]
    with engine.log_path.open("wb") as log:
        outer = subprocess.Popen(command, stdout=log, stderr=log)
    engine.process = outer
    try:
        wait_until(lambda: "Init torch distributed begin" in engine.log(), timeout_s=20, describe=engine.log)
        (inner,) = psutil.Process(outer.pid).children()
        inner.terminate()
        engine.wait_ready()
        assert inner.is_running()
    finally:
        engine.kill()


def test_metrics_are_404_without_the_flag(tmp_path: Path) -> None:
    base = ["--load-format", "dummy", "--attention-backend", "triton", "--mem-fraction-static", "0.5"]
    with EngineProcess(tmp_path, "--skip-server-warmup", base_args=base, speed=200) as engine:
        engine.wait_ready()
        assert engine.get("/metrics").status == 404
        assert engine.get("/v1/loads").status == 200


def test_the_removed_get_load_is_404(idle_engine: EngineProcess) -> None:
    assert idle_engine.get("/get_load").status == 404


@pytest.mark.parametrize("path", ["/ready", "/v1/loads", "/metrics", "/server_info"])
def test_reports_are_fast(idle_engine: EngineProcess, path: str) -> None:
    assert min(idle_engine.get(path).took_s for _ in range(5)) < 0.5


@pytest.mark.parametrize("path", ["/health", "/health_generate"])
def test_health_takes_a_second(idle_engine: EngineProcess, path: str) -> None:
    answer = idle_engine.get(path)
    assert answer.status == 200
    assert 1.0 <= answer.took_s < 5.0


def test_health_can_be_made_cheap_but_health_generate_not(tmp_path: Path) -> None:
    env = {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0"}
    with EngineProcess(tmp_path, "--skip-server-warmup", env=env, speed=200) as engine:
        engine.wait_ready()
        assert min(engine.get("/health").took_s for _ in range(3)) < 0.5
        assert engine.get("/health_generate").took_s >= 1.0


def test_health_probes_are_not_requests_in_metrics(idle_engine: EngineProcess) -> None:
    before = idle_engine.metrics()
    assert idle_engine.get("/health_generate").status == 200
    after = idle_engine.metrics()
    for name in ("num_requests_total", "prompt_tokens_total"):
        assert _total(after, name) == _total(before, name)
    assert _total(after, "queue_time_seconds_count") == _total(before, "queue_time_seconds_count") + 1


def _total(samples: dict[str, float], name: str) -> float:
    return sum(value for key, value in samples.items() if key.split("{")[0] == f"sglang:{name}")
