"""Where the demo is told: titles, sentences, commands that are shown and really run, and a line of live figures.

On a terminal the figures are one line that changes; in a pipe they are a line every few seconds. Not here: the story
(`demo`), and what the figures are (`demo_show`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from sglpool.sandbox.errors import SandboxError

COMMAND_LIMIT_S = 210.0
PIPE_EVERY_S = 10.0
_POLL_S = 0.2
_SHOW_AFTER_S = 1.0

Done = subprocess.CompletedProcess[str]


class Stage:
    """Tells, runs commands, and waits.

    Args:
        console: Where it is told.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._environment: Mapping[str, str] = os.environ
        self._kubectl = Path("kubectl")
        self.figures: Callable[[], str] = str
        """The live line; empty for none."""

    def point_at(self, kubectl: Path, kubeconfig: Path) -> None:
        """Run every command against this cluster from now on."""
        self._kubectl = kubectl
        self._environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}

    @property
    def environment(self) -> dict[str, str]:
        """Environment of the commands."""
        return dict(self._environment)

    def title(self, text: str) -> None:
        """Begin a chapter."""
        self._console.print(f"\n{text}", style="bold", highlight=False, markup=False)

    def say(self, text: str) -> None:
        """A sentence."""
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def whisper(self, text: str) -> None:
        """A line of less weight."""
        self._console.print(f"  {text}", style="dim", highlight=False, markup=False, soft_wrap=True)

    def show(self, text: str, style: str) -> None:
        """What somebody else said."""
        self._console.print(f"  {text}", style=style, highlight=False, markup=False, soft_wrap=True)

    def typed(self, text: str) -> None:
        """A command as a user would type it."""
        self._console.print(f"$ {text}", style="bold cyan", highlight=False, markup=False, soft_wrap=True)

    def kubectl(self, *arguments: str, text: str | None = None, refused: bool = False, hide: bool = False) -> str:
        """Show a kubectl command, run it, show its output; fail when it fares otherwise than told.

        Args:
            arguments: What follows `kubectl`.
            text: Its standard input.
            refused: It is expected to fail.
            hide: Show neither the command nor its output.

        Returns:
            Its output.

        Raises:
            SandboxError: It failed, or did not fail although it should.
        """
        words = " ".join(_quote(argument) for argument in arguments)
        if not hide:
            self.typed(f"kubectl {words}")
        return self._run([str(self._kubectl), *arguments], f"kubectl {words}", text=text, refused=refused, hide=hide)

    def sglpool(self, *arguments: str, hide: bool = False) -> str:
        """The same with a command of sglpool."""
        words = " ".join(("sglpool", *arguments))
        if not hide:
            self.typed(words)
        return self._run([sys.executable, "-m", "sglpool", *arguments], words, hide=hide)

    def succeeds(self, *arguments: str) -> bool:
        """Whether a kubectl command succeeds; nothing is shown."""
        return self._execute([str(self._kubectl), *arguments], None).returncode == 0

    def until(self, done: Callable[[], bool], otherwise: str, *, limit_s: float) -> None:
        """Wait, with live figures.

        Raises:
            SandboxError: It took too long; `otherwise` says what is missing.
        """
        deadline_s = time.monotonic() + limit_s
        with self._live() as update:
            while not done():
                if time.monotonic() > deadline_s:
                    raise SandboxError(f"after {limit_s:.0f} s {otherwise}")
                update()
                time.sleep(_POLL_S)

    def hold(self, seconds: float) -> None:
        """Let time pass, with live figures."""
        end_s = time.monotonic() + seconds
        with self._live() as update:
            while time.monotonic() < end_s:
                update()
                time.sleep(_POLL_S)

    @contextmanager
    def _live(self) -> Iterator[Callable[[], None]]:
        """A line of figures for as long as something takes, in its own way on a terminal and in a pipe."""
        if not self._console.is_terminal:
            shown_s = time.monotonic()

            def print_now_and_then() -> None:
                nonlocal shown_s
                if time.monotonic() - shown_s >= PIPE_EVERY_S:
                    shown_s = time.monotonic()
                    if line := self.figures():
                        self.whisper(line)

            yield print_now_and_then
            return
        with self._console.status("", spinner="dots") as status:
            yield lambda: status.update(self.figures() or "...")

    def _run(
        self, command: list[str], words: str, *, text: str | None = None, refused: bool = False, hide: bool = False
    ) -> str:
        done = self._execute(command, text)
        output = (done.stdout + done.stderr).rstrip()
        if not hide and output:
            style = "yellow" if refused else ""
            self._console.print(output, style=style, highlight=False, markup=False, soft_wrap=True)
        if (done.returncode != 0) != refused:
            raise SandboxError(f"`{words}` {'succeeded' if refused else 'failed'}: {output}")
        return done.stdout.strip()

    def _execute(self, command: list[str], text: str | None) -> Done:
        """Run a command to its end, with figures beside it; it does not outlive whatever goes wrong meanwhile."""
        process = subprocess.Popen(
            command,
            env=self.environment,
            stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process, ThreadPoolExecutor(1) as pool:
            running = pool.submit(process.communicate, text, COMMAND_LIMIT_S)
            try:
                self._watch(running)
                out, err = running.result()
            except subprocess.TimeoutExpired:
                process.kill()
                return Done(command, 1, "", f"it did not end within {COMMAND_LIMIT_S:.0f} s")
            except BaseException:
                process.kill()
                raise
        return Done(command, process.returncode, out, err)

    def _watch(self, running: Future[tuple[str, str]]) -> None:
        """Figures beside a command that takes long."""
        begin_s = time.monotonic()
        while not running.done() and time.monotonic() - begin_s < _SHOW_AFTER_S:
            time.sleep(_POLL_S / 10)
        if not running.done():
            with self._live() as update:
                while not running.done():
                    update()
                    time.sleep(_POLL_S)


def _quote(argument: str) -> str:
    return f"'{argument}'" if set(argument) & set(' {}[]()"$?*|') else argument
