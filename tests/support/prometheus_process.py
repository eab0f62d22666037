"""A real Prometheus as a process in a folder, with scrape jobs and rules of a test.

Not here: what it is asked (`tools.observability.query`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.engine_process import free_port
from support.waiting import wait_until

Json = dict[str, Any]


def prometheus_program() -> str:
    """Its path; skips the test where there is none."""
    found = shutil.which("prometheus", path=os.environ.get("PROMETHEUS_BIN", os.environ.get("PATH")))
    if found is None:
        pytest.skip("no Prometheus here: `apt-get install prometheus` brings one, or PROMETHEUS_BIN names its folder")
    return found


class PrometheusProcess:
    """One Prometheus; `with` starts it, waits until it serves, and ends it."""

    def __init__(self, folder: Path, jobs: Sequence[Json], *, rules: Sequence[Path] = (), interval_s: int = 1) -> None:
        every = f"{interval_s}s"
        timing = {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every}
        config = {"global": timing, "scrape_configs": list(jobs), "rule_files": [str(path) for path in rules]}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        self._folder = folder
        self._program = prometheus_program()
        self.url = f"http://127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PrometheusProcess:
        command = [self._program, f"--config.file={self._folder / 'prometheus.yml'}", "--log.level=warn"]
        command += [f"--storage.tsdb.path={self._folder / 'data'}", f"--web.listen-address={self.url[7:]}"]
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait_until(self._is_ready, timeout_s=60, describe=self.log)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)

    def log(self) -> str:
        """What it has said."""
        return (self._folder / "prometheus.log").read_text()

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log()
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
