"""A pod with short limits, and nothing left of it afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglpool.render.scripts import EngineScriptConfig, Liveness, WeightsPolicy

from .pod import FAST_WARM_UP, Pod, free_port, processes_of


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    config = EngineScriptConfig(
        served_model_name="kimi",
        weights=(),
        port=free_port(),
        drain_s=30,
        hung_drain_s=0.5,
        ready_timeout_s=30,
        ready_poll_s=0.02,
        warm_up=FAST_WARM_UP,
        liveness=Liveness(
            still_runs=3,
            failures=3,
            chat_timeout_s=20,
            read_timeout_s=10,
            dump_timeout_s=30,
            log_path=str(tmp_path / "log"),
        ),
        weights_policy=WeightsPolicy(lock_poll_s=0.02, report_every_s=0.05, backoff_s=0.02, lock_timeout_s=30),
        cache_dirs=(str(tmp_path / "cache" / "compiled" / "abc-sm100" / "triton"),),
        run_dir=str(tmp_path / "run"),
    )
    pod = Pod(tmp_path, config)
    pod.configure()
    pod.control()
    yield pod
    for process in pod.processes:
        if process.poll() is None:
            process.kill()
        process.wait(20)
    for pid in processes_of(tmp_path):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
