"""What the sandbox's commands share: where they print, and how they end on errors and interrupts."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from sglpool.sandbox.errors import SandboxError

OUT = Console()
_PROGRESS = Console(stderr=True, highlight=False)

DEFAULT_FOLDER = Path(".sandbox")
Folder = Annotated[
    Path, typer.Option("--dir", help="Folder of the sandbox: kubeconfig, logs and data.", envvar="SGLPOOL_SANDBOX")
]


def say(line: str) -> None:
    """Print a line of progress, apart from the output."""
    _PROGRESS.print(line, soft_wrap=True, markup=False)


@contextlib.contextmanager
def told_plainly(*, on_interrupt: str = "interrupted; nothing is left running") -> Iterator[None]:
    """Errors as one red line, interrupts of any kind as a clean end."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        yield
    except SandboxError as error:
        _PROGRESS.print(f"[red]error:[/red] {error}", soft_wrap=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        say(on_interrupt)
        raise typer.Exit(130) from None


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
