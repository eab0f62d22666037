"""Pages of the docs as a newcomer types them: every command of their blocks, in order, in one shell.

What a block sets, the next one has. Python blocks are run by Python with the shell's environment. Not here: which page,
and what has to come of it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
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

    @property
    def needs_cluster(self) -> bool:
        """Whether a reader needs a cluster of their own for it."""
        return self.text.startswith(NEEDS_CLUSTER)


def blocks(text: str) -> list[Block]:
    """Every block of a page."""
    return [Block(kind, body) for kind, body in _BLOCK.findall(text)]


@dataclass(frozen=True)
class Said:
    """What the commands of a page printed, by command; those of one block share what it printed."""

    by_command: Mapping[str, str]

    def by(self, begin: str) -> str:
        """What the first command with these words in it printed."""
        return next(text for command, text in self.by_command.items() if begin in command)


def walk(page: str, folder: Path, instead: Mapping[str, str]) -> Said:
    """Walk a page to its end, without what needs a cluster of one's own, and end the sandbox that it started.

    Args:
        page: The page.
        folder: An empty folder.
        instead: What is typed instead of a part of a command, such as a faster clock.
    """
    shell = _Shell(folder, instead)
    said: dict[str, str] = {}
    try:
        for block in blocks(page):
            if not block.needs_cluster:
                said |= dict.fromkeys(block.commands, shell.run(block))
    finally:
        shell.run(Block("console", "$ sglpool sandbox down\n"))
    assert not (folder / "sandbox").exists()
    return Said(said)


class _Shell:
    """A shell that lives as long as the walk; its state and the sandbox are in a folder."""

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
