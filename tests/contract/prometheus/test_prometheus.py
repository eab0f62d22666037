"""A real Prometheus that scrapes a real process: what the operator reads from it, and what it takes for missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sglpool.signals import PrometheusAt, Reading, Sources, Tokens
from support.engine_process import EngineProcess, free_port
from support.fake_kube import FakeKube
from support.signal_peers import endpoint, target
from support.waiting import wait_until

pytestmark = pytest.mark.timeout(180)
TEXT = " ".join(f"word{number}" for number in range(2000))


class Prometheus:
    """One Prometheus in a folder that scrapes one engine once a second, under the name of a pod."""

    def __init__(self, program: str, folder: Path, engine: EngineProcess, *, namespace: str, pod: str) -> None:
        self.port = free_port()
        labels = {"namespace": namespace, "pod": pod}
        targets = [{"targets": [f"127.0.0.1:{engine.port}"], "labels": labels}]
        job = {"job_name": "engines", "scrape_interval": "1s", "scrape_timeout": "1s", "static_configs": targets}
        config = folder / "prometheus.yml"
        config.write_text(json.dumps({"scrape_configs": [job]}))  # JSON is YAML
        command = [program, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
        command += [f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn"]
        self.log = folder / "prometheus.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    @property
    def at(self) -> PrometheusAt:
        return PrometheusAt(url=f"http://127.0.0.1:{self.port}")

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            with urllib.request.urlopen(f"{self.at.url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(10)


@pytest.fixture
def program() -> str:
    found = shutil.which("prometheus", path=os.environ.get("PROMETHEUS_BIN", os.environ.get("PATH")))
    if found is None:
        pytest.skip("no Prometheus here: `apt-get install prometheus` brings one, or PROMETHEUS_BIN names its folder")
    return found


@pytest.fixture
def engine(program: str, tmp_path: Path) -> Iterator[EngineProcess]:
    with EngineProcess(tmp_path / "engine") as engine:
        yield engine.wait_ready()


@pytest.fixture
def prometheus(program: str, engine: EngineProcess, tmp_path: Path) -> Iterator[Prometheus]:
    found = Prometheus(program, tmp_path, engine, namespace="ns", pod="p-b200-0")
    wait_until(found.is_ready, timeout_s=60, describe=lambda: found.log.read_text())
    yield found
    found.stop()


async def read(at: PrometheusAt, **changes: Any) -> Reading:
    of = replace(target(), **{"engines": (endpoint("p-b200-0"),), "prometheus": at, "engine_port": 1, **changes})
    async with Sources(Tokens(FakeKube())) as sources:
        return await sources.read(of)


async def wait_for(at: PrometheusAt, what: str, check: Any, timeout_s: float = 60) -> Reading:
    """Read until a reading is as it should be."""
    deadline_s = time.monotonic() + timeout_s
    while not check(reading := await read(at)):
        assert time.monotonic() < deadline_s, f"{what}: {reading}"
    return reading


async def test_figures_of_an_engine_come_with_their_age(engine: EngineProcess, prometheus: Prometheus):
    idle = await wait_for(prometheus.at, "a first scrape", lambda reading: reading.measured)
    one = idle.measured["p-b200-0"]
    assert (idle.in_flight, idle.problems) == (0.0, ())
    assert one.kv_total_tokens == engine.load()["max_total_num_tokens"]
    assert one.age_s < 30

    stream = engine.stream(
        "/v1/completions", {"model": "m", "prompt": TEXT, "max_tokens": 100_000, "ignore_eos": True}, timeout_s=60
    )
    try:
        busy = await wait_for(prometheus.at, "the request", lambda reading: reading.in_flight == 1.0)
        assert busy.measured["p-b200-0"].kv_used_tokens > 1000
    finally:
        stream.close()


async def test_another_pools_series_are_no_figures_of_this_one(prometheus: Prometheus):
    await wait_for(prometheus.at, "a first scrape", lambda reading: reading.measured)
    for other in ({"namespace": "another"}, {"pool": "q"}, {"engines": (endpoint("p-b200-1"),)}):
        reading = await read(prometheus.at, **other)
        assert (reading.in_flight, reading.measured) == (None, {}), other
        assert "no current figures of pod" in reading.problems[0]


async def test_figures_of_an_engine_that_is_gone_grow_old_and_without_a_prometheus_there_are_none(
    engine: EngineProcess, prometheus: Prometheus
):
    await wait_for(prometheus.at, "a first scrape", lambda reading: reading.measured)
    engine.kill()
    await wait_for(
        prometheus.at,
        "samples that age",
        lambda reading: reading.measured and reading.measured["p-b200-0"].age_s > 5,
    )
    prometheus.stop()
    reading = await read(prometheus.at)
    assert reading.in_flight is None
    assert "cannot be asked" in reading.problems[0]
