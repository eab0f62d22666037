"""What GitOps tools make of an object: kstatus by cli-utils' own code, and the Lua scripts of Argo CD.

The program is built once from `tests/gitops/tool` and kept beside the control plane's.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglpool.sandbox import binaries, gobuild
from sglpool.sandbox.files import publish

ARGOCD = Path(__file__).parents[2] / "manifests/argocd"
ACTIONS = ("pause", "resume", "abort", "retry-gate")
_SOURCE = Path(__file__).parents[1] / "gitops/tool"
_LIMIT_S = 30
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class GitOps:
    """Argo CD's and Flux' view of objects."""

    program: Path

    def _ask(self, question: Json) -> Any:
        done = subprocess.run(
            [self.program], input=json.dumps(question), capture_output=True, text=True, timeout=_LIMIT_S, check=True
        )
        answer = json.loads(done.stdout)
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def kstatus(self, manifest: Json) -> str:
        """`Terminating`, `InProgress`, `Failed` or `Current`: what Flux and `flux reconcile` wait for."""
        return str(self._ask({"object": manifest}))

    def health(self, manifest: Json) -> tuple[str, str]:
        """Status and message that Argo CD shows."""
        told = self._ask({"script": (ARGOCD / "health.lua").read_text(encoding="utf-8"), "object": manifest})
        return told["status"], told["message"]

    def offered(self, manifest: Json) -> set[str]:
        """Actions that would do something now."""
        found = self._ask({"script": (ARGOCD / "discovery.lua").read_text(encoding="utf-8"), "object": manifest})
        assert set(found) == set(ACTIONS)
        return {name for name, action in found.items() if not action["disabled"]}

    def act(self, name: str, manifest: Json) -> Json:
        """The object after an action."""
        script = (ARGOCD / f"{name}.lua").read_text(encoding="utf-8")
        return dict(self._ask({"script": script, "object": manifest}))


def gitops_program(*, say: Callable[[str], None] = lambda _: None) -> Path:
    """The program, built if it is not there."""
    files = sorted(_SOURCE.iterdir())
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    root = binaries.cache_root(os.environ) / "gitops"
    program = root / f"gitops-{digest}"
    if not program.exists():
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root) as out:
            command = [gobuild._find_go(_SOURCE), "build", "-v", "-trimpath", "-o", f"{out}/gitops", "."]
            gobuild._run(command, cwd=_SOURCE, what="kstatus and Lua", say=say, extra_env={"CGO_ENABLED": "0"})
            publish(Path(out) / "gitops", program)
    return program
