"""The control-plane suite on kind: another real cluster, the same tests, a kubeconfig between them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.kind

SUITE_LIMIT_S = 3600


@pytest.mark.timeout(SUITE_LIMIT_S + 600)
def test_the_control_plane_suite_passes_on_kind(kubeconfig: Path, request: pytest.FixtureRequest) -> None:
    tests = request.config.rootpath / "tests/controlplane"
    # The sandbox's own tests start sandboxes; they say nothing about kind.
    command = [sys.executable, "-m", "pytest", str(tests), f"--ignore={tests / 'test_sandbox.py'}"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider"],
        cwd=request.config.rootpath,
        env={**os.environ, "KUBECONFIG": str(kubeconfig), "SGLPOOL_TEST_KUBECONFIG": "1"},
        capture_output=True,
        text=True,
        timeout=SUITE_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
