"""The operator as a process of its own, as it runs in life."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

from support.waiting import wait_until


class OperatorProcess:
    """One `sglpool operator`, with its log in a file.

    Args:
        kubeconfig: The cluster.
        log: Where its output goes.
        arguments: What its command line has besides.
        source: Folder with another version's package.
    """

    def __init__(self, kubeconfig: Path, log: Path, *arguments: str, source: Path | None = None) -> None:
        self._arguments = [
            sys.executable, "-m", "sglpool", "operator",
            "--kubeconfig", str(kubeconfig), "--bind", "127.0.0.1:0", *arguments,
        ]  # fmt: skip
        self.log = log
        self._environ = {**os.environ, "PYTHONPATH": str(source)} if source else None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, timeout_s: float = 30, *, until: str = "/readyz") -> None:
        """Start it and wait until an endpoint answers 200; /readyz does when the first full listing is done."""
        begin = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(self._arguments, stdout=out, stderr=subprocess.STDOUT, env=self._environ)
        wait_until(lambda: self._answers(until, begin), timeout_s=timeout_s, describe=self._tail)

    def stop(self, timeout_s: float = 20) -> None:
        """SIGTERM, and a clean end."""
        if self._process is None:
            return
        self._process.terminate()
        code = self._process.wait(timeout_s)
        self._process = None
        assert code == 0, f"the operator ended with {code}:\n{self._tail()}"

    def kill(self) -> None:
        """SIGKILL, as a lost node would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def get(self, path: str) -> tuple[int, str]:
        """GET one of its endpoints."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    @property
    def port(self) -> int:
        return int(re.findall(r"127\.0\.0\.1'?, ?:?(\d+)", self.log.read_text())[-1])

    def _answers(self, path: str, begin: int) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the operator ended at once:\n{self._tail()}"
        if not re.search(r"127\.0\.0\.1'?, ?:?\d+", self.log.read_text()[begin:]):
            return False
        try:
            return self.get(path)[0] == 200
        except OSError:
            return False

    def _tail(self) -> str:
        return "operator is ready; its log ends:\n" + "\n".join(self.log.read_text().splitlines()[-30:])
