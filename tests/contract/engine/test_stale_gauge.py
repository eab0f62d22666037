"""The hole in a real SGLang's gauges: token_usage of a short request stays for 30 s (reading 3)."""

from __future__ import annotations

import time
from pathlib import Path

from contract.engine import exposition
from contract.engine.asking import completion, wait_idle
from support.engine_process import EngineProcess
from support.waiting import wait_until

SPEED = 10.0
STALE_S = 30.0 / SPEED


def test_usage_of_a_short_request_stays_in_metrics_but_not_in_loads(tmp_path: Path) -> None:
    flags = ("--max-total-tokens", "60000", "--max-running-requests", "8", "--skip-server-warmup")
    with EngineProcess(tmp_path, *flags, "--disable-cuda-graph", speed=SPEED) as engine:
        engine.wait_ready()

        def gauge(name: str) -> float:
            value = exposition.value(engine.get("/metrics").body.decode(), f"sglang:{name}")
            assert value is not None
            return value

        names = iter("abcde")

        def left_behind() -> bool:
            """Serve a short request; a process that was held up may end it in one go, and then nothing is left."""
            assert engine.post("/v1/completions", completion(9000, 2, name=next(names))).status == 200
            wait_idle(engine)
            return gauge("num_used_tokens") > 0

        wait_until(left_behind, timeout_s=20, describe="tokens of an ended request in the gauges")
        ended_s = time.monotonic()
        assert 9000 <= gauge("num_used_tokens") <= 9002
        assert gauge("token_usage") == 0.15
        assert gauge("num_running_reqs") == 0
        assert engine.load()["num_used_tokens"] == 0
        wait_until(lambda: gauge("num_used_tokens") == 0, timeout_s=3 * STALE_S, describe="the idle report")
        # Less than the whole wait, for that began when the last report was written.
        assert time.monotonic() - ended_s > STALE_S * 0.7
        assert gauge("token_usage") == 0
