"""The logs of containers: one file for each run, standard output and standard error in the order of writing.

The container writes into the file itself, so a busy agent slows nobody down and a dead one loses nothing. A file that
outgrows its limit is copied beside itself (`<attempt>.log.1`) and emptied; what is written in that moment may be lost.
The logs of the last two runs are kept, also after the pod is gone. A log that nobody will write to any more is
read-only: so whoever follows it knows where it ends. Not here: who reads them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path

MAX_LOG_BYTES = 10 * 2**20
KEPT_ATTEMPTS = 2
CURRENT_LINK = "current.log"
_COMPLETE_MODE = 0o444
_TAIL_BYTES = 2048
_TAIL_LINES = 80
_MESSAGE_BYTES = 4096


def open_log(folder: Path, attempt: int) -> tuple[Path, int]:
    """Begin the log of one run and forget the oldest; returns its path and a descriptor to write to.

    Raises:
        OSError: The file cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for entry in folder.iterdir():
        match = re.fullmatch(r"(\d+)\.log(\.1)?", entry.name)
        if match and int(match.group(1)) <= attempt - KEPT_ATTEMPTS:
            entry.unlink(missing_ok=True)
    path = folder / f"{attempt}.log"
    # A start that failed may have left one, complete by now.
    path.unlink(missing_ok=True)
    # O_APPEND: after emptying the file its writer goes on at the beginning, not behind a hole.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
    link = folder / f".{CURRENT_LINK}.new"
    link.unlink(missing_ok=True)
    link.symlink_to(path.name)
    link.replace(folder / CURRENT_LINK)
    return path, descriptor


def limit_log(path: Path, max_bytes: int = MAX_LOG_BYTES) -> bool:
    """Keep a log within its limit; returns whether it was emptied. A full disk must not stop a container."""
    with contextlib.suppress(OSError):
        if path.stat().st_size <= max_bytes:
            return False
        with contextlib.suppress(OSError):
            shutil.copyfile(path, path.with_name(f"{path.name}.1"))
        os.truncate(path, 0)
        return True
    return False


def complete_log(path: Path) -> None:
    """Mark the log of a run that is over."""
    with contextlib.suppress(OSError):
        path.chmod(_COMPLETE_MODE)


def is_complete(path: Path) -> bool:
    """Whether nothing will be added to a log: its run is over, or there is a later one (an agent that died marks none).

    Raises:
        FileNotFoundError: There is no such log any more.
    """
    return path.stat().st_mode & 0o777 == _COMPLETE_MODE or path.with_name(f"{int(path.stem) + 1}.log").exists()


def first_line(path: Path) -> str:
    """The first line of a log, as far as it is of interest."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.readline(_TAIL_BYTES).decode(errors="replace").rstrip("\n")
    return ""


def tail(path: Path, *, max_bytes: int = _TAIL_BYTES, max_lines: int = _TAIL_LINES) -> str:
    """The end of a log: at most so many bytes and lines."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - max_bytes))
        lines = file.read(max_bytes).decode(errors="replace").splitlines(keepends=True)
        return "".join(lines[-max_lines:])
    return ""


def termination_message(own_file: Path, log: Path, *, from_log: bool) -> str:
    """What a container says about its end: its own file, or else (when asked for) the end of its log."""
    message = ""
    with contextlib.suppress(OSError), own_file.open("rb") as file:
        message = file.read(_MESSAGE_BYTES).decode(errors="replace")
    return tail(log) if from_log and not message else message
