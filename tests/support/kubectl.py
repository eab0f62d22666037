"""kubectl as a function: arguments in, standard output back, an AssertionError with its words on failure."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.waiting import wait_until


@dataclass(frozen=True, slots=True)
class Kubectl:
    binary: Path
    kubeconfig: Path

    def __call__(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002 - as in subprocess.run
        timeout_s: float = 60,
    ) -> str:
        """Run it and return what it printed."""
        done = self.run(*arguments, input=input, timeout_s=timeout_s)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr.strip()}"
        return done.stdout

    def run(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002 - as in subprocess.run
        timeout_s: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run it and return everything, for calls that are meant to be refused."""
        return subprocess.run(
            [self.binary, *arguments],
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            input=input,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def create_namespace(self, name: str) -> None:
        """Create a namespace and wait until pods can be created in it."""
        self("create", "namespace", name)
        # The admission of pods refuses them until the namespace has its default ServiceAccount.
        wait_until(
            lambda: self.run("get", "serviceaccount", "default", "-n", name).returncode == 0,
            timeout_s=30,
            describe=f"namespace {name} has its default ServiceAccount",
        )

    def json(self, *arguments: str) -> dict[str, Any]:
        """Run it with `-o json` and return the parsed answer."""
        answer: dict[str, Any] = json.loads(self(*arguments, "-o", "json"))
        return answer
