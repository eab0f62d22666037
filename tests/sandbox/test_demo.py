"""The demo of the README, run as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.controlplane

ROOT = Path(__file__).parents[2]


LIMIT_S = 900
CHAPTERS = (
    "The pool is applied",
    "Ready with 2 replicas",
    "A change that cannot fit",
    "3 agent sessions begin",
    "a thick one of 6 conversations",
    "Ready with 4 replicas",
    "loses its power",
    "is gone from the cluster",
    "Ready with 4 replicas again, on another node",
    "One agent session is left",
    "2 replicas are left",
    "The pool is deleted",
)


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
    for chapter in CHAPTERS:
        assert chapter in page, done.stdout
