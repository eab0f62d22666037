"""Walks a page of the docs as a newcomer does: every command of its blocks, in order, in one shell.

What a block sets, the next one has. Python blocks are run by Python with the shell's environment. Not here: which page,
and what has to come of it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK_LIMIT_S = 240
_BLOCK = re.compile(r"^```(console|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FOLLOW_S = 2
NEEDS_CLUSTER = "# on a cluster"


@dataclass(frozen=True)
class Block:
    """One block of a page.

    Attributes:
        kind: `console` or `python`.
        text: What stands in it.
    """

    kind: str
    text: str

    @property
    def commands(self) -> list[str]:
        """What a reader would type; the program as one command where the block is one."""
        if self.kind == "python":
            return [f"python - <<'EOF'\n{self.text}EOF"]
        return [line.removeprefix("$ ") for line in self.text.splitlines() if line.startswith("$ ")]


def blocks(text: str) -> list[Block]:
    """Every block of a page that a reader can run without a cluster of their own."""
    return [Block(kind, body) for kind, body in _BLOCK.findall(text) if not body.startswith(NEEDS_CLUSTER)]


class Walk:
    """A shell that lives as long as the walk.

    Args:
        folder: Where the sandbox and the shell's state live.
        instead: What is typed instead of a part of a command, such as a faster clock.
    """

    def __init__(self, folder: Path, instead: Mapping[str, str]) -> None:
        self._state = folder / "shell"
        self._state.touch()
        self._instead = instead
        self._environment = {
            **{name: value for name, value in os.environ.items() if name != "KUBECONFIG"},
            "SGLPOOL_SANDBOX": str(folder / "sandbox"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "COLUMNS": "200",
        }

    def through(self, page: str) -> Iterator[tuple[Block, str]]:
        """Run a page block by block; each comes with what its commands printed."""
        for block in blocks(page):
            yield block, self.run(block)

    def run(self, block: Block) -> str:
        """Run one block.

        Raises:
            AssertionError: A command of it failed, or took too long.
        """
        typed = "\n".join(self._typed(command) for command in block.commands)
        # -x tells which command it was that failed.
        script = f". {self._state}\nset -ax\n{typed}\nset +x\nexport -p > {self._state}\n"
        command = ["bash", "-eo", "pipefail", "-c", script]
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=self._environment,
                capture_output=True,
                text=True,
                timeout=BLOCK_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"{typed}\ndid not end within {BLOCK_LIMIT_S} s: {error.output!r}") from error
        assert done.returncode == 0, f"{typed}\n{done.stdout}\n{done.stderr[-4000:]}"
        return done.stdout

    def _typed(self, command: str) -> str:
        for part, other in self._instead.items():
            command = command.replace(part, other)
        if command.endswith(" -f"):
            # A reader looks for a while, and ends it.
            return f"timeout --signal=INT {_FOLLOW_S} {command} || test $? -eq 124"
        return command
