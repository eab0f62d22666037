"""The demo of the README, run as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.controlplane

ROOT = Path(__file__).parents[2]


LIMIT_S = 900


@pytest.mark.timeout(LIMIT_S + 10)
def test_the_demo_goes_as_told(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    done = subprocess.run(
        [sys.executable, "-m", "sglpool", "sandbox", "demo", "--dir", str(tmp_path / "demo"), "--report", str(report)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "AllReplicasReady" in done.stdout
    assert "This would fit: tensorParallelSize 4" in done.stdout
    assert "nothing is left running" in done.stdout
    assert not (tmp_path / "demo").exists()
    page = report.read_text()
    for words in ("Ready with 2 replicas", "Ready with 4 replicas", "loses its power", "again, on another node"):
        assert words in page, done.stdout
