#!/usr/bin/env python3
"""The last look at an engine that is about to be restarted: load, processes, GPUs and stacks.

Used by liveness.py. Everything is bounded in time and size, and nothing here can fail the probe: a tool that
the image lacks or that hangs with the GPU driver is one line in the log.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglpool.render.templates import sglpool_engine as engine
else:  # in the pod the scripts lie side by side
    import sglpool_engine as engine

TOOL_S = 10.0
LOADS_S = 5.0
MAX_SECTION_CHARS = 16_000
MAX_PROCESSES = 64
MAX_STACKS = 12


def dump(config: engine.Json, reason: str) -> None:
    """Write the state of the engine to the container's log, within the configured time."""
    until = time.monotonic() + config["liveness"]["dump_timeout_s"]
    write_log(config, [reason])
    write_log(config, ["dump, /v1/loads:", *clipped(read_loads(config))])
    write_log(config, ["dump, processes:", *list_processes()])
    write_log(config, ["dump, nvidia-smi:", *clipped(run_tool(config, ["nvidia-smi"], until))])
    for pid in server_processes(config)[:MAX_STACKS]:
        output = run_tool(config, ["py-spy", "dump", "--pid", str(pid)], until)
        write_log(config, [f"dump, stacks of process {pid}:", *clipped(output)])
    write_log(config, ["dump ended."])


def write_log(config: engine.Json, lines: Iterable[str]) -> None:
    """Append lines to the log of PID 1, or to the probe's own output where that cannot be opened."""
    first, *rest = lines
    text = "\n".join([f"sglpool: {first}", *rest]) + "\n"
    try:
        with open(config["liveness"]["log_path"], "a", encoding="utf-8") as stream:
            stream.write(text)
    except OSError:
        print(text, end="", flush=True)


def clipped(text: str) -> list[str]:
    """The beginning of a section, indented line by line."""
    mark = ["  (cut)"] if len(text) > MAX_SECTION_CHARS else []
    return [f"  {line}" for line in text[:MAX_SECTION_CHARS].splitlines()] + mark


def read_loads(config: engine.Json) -> str:
    """The load report as it comes."""
    try:
        return engine.request(config, "/v1/loads", timeout_s=LOADS_S).body.decode("utf-8", "replace")
    except engine.NoAnswer as error:
        return f"unknown: {error}"


def list_processes() -> list[str]:
    """A line for every process in sight but this one: id, state, waiting place in the kernel, command."""
    lines = []
    pids = sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    for pid in pids:
        entry = Path("/proc", str(pid))
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
            if not command or pid == os.getpid():
                continue
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            waiting = "?"
            with contextlib.suppress(OSError):
                waiting = (entry / "wchan").read_text()
            lines.append(f"  {pid} {state} {waiting} {command[:160]}")
    return lines[:MAX_PROCESSES]


def server_processes(config: engine.Json) -> list[int]:
    """The server and its ranks, by the process id that the launcher noted."""
    try:
        server = int(engine.marker(config, "server.pid").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [server, *engine.living_descendants(server)]


def run_tool(config: engine.Json, command: list[str], until: float) -> str:
    """Output of a tool. One that hangs is killed and left: in a driver call it does not even die."""
    limit_s = min(TOOL_S, until - time.monotonic())
    if shutil.which(command[0]) is None:
        return f"{command[0]} is not in this image"
    if limit_s <= 0:
        return "left out: the time for the dump is over"
    with tempfile.TemporaryFile(dir=config["run_dir"]) as output:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        except OSError as error:
            return f"{command[0]} cannot run: {error}"
        try:
            process.wait(limit_s)
            note = ""
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            note = f"\n{command[0]} did not finish within {limit_s:.0f} s"
        output.seek(0)
        return output.read(MAX_SECTION_CHARS + 1).decode("utf-8", "replace") + note
