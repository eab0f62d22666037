"""The stand-in for an engine pod: its folders, its scripts as rendered, and the processes started for it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from sglpool.render.scripts import EngineScriptConfig, WarmUp, engine_files

STUBS = Path(__file__).parent / "stubs"
IDLE = {
    "num_running_reqs": 0,
    "num_waiting_reqs": 0,
    "num_used_tokens": 0,
    "num_waiting_uncached_tokens": 0,
    "num_total_tokens": 0,
    "total_prefill_uncached_tokens": 6,
    "total_prefill_busy_us": 100,
}
BUSY = IDLE | {"num_running_reqs": 3, "num_waiting_reqs": 1, "num_used_tokens": 5000, "num_total_tokens": 5000}
# As read during a 30,000-token prompt on a real engine: nothing runs, nothing waits.
CHUNKED_PREFILL = IDLE | {"num_waiting_uncached_tokens": 13616, "num_used_tokens": 24576}
HANGS = [[200, 60]]
FAST_WARM_UP = WarmUp(prompts=2, prompt_tokens=50, attempts=3, backoff_s=0.02, request_timeout_s=20, timeout_s=60)

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare for a PID namespace"
)


def eventually(condition: Callable[[], object], what: str, limit_s: float = 30) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, f"not within {limit_s:g} s: {what}"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass
class Pod:
    """A folder that stands for the pod, and the processes started for it."""

    folder: Path
    config: EngineScriptConfig
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def control(self, **settings: Any) -> None:
        part = self.folder / "control.part"
        part.write_text(json.dumps({"loads": IDLE} | settings))
        part.replace(self.folder / "control.json")

    def configure(self, **changes: Any) -> None:
        self.config = replace(self.config, **changes)
        for name, text in engine_files(self.config).items():
            (self.folder / "scripts").mkdir(exist_ok=True)
            (self.folder / "scripts" / name).write_text(text)

    def spawn(self, command: list[str], env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        with open(self.folder / "log", "a") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, text=True, env=os.environ | dict(env or {}))
        self.processes.append(process)
        return process

    def script(self, name: str) -> str:
        return str(self.folder / "scripts" / name)

    def server_command(self) -> list[str]:
        return [sys.executable, str(STUBS / "engine.py"), str(self.folder), str(self.config.port)]

    def launch(self, *, pid_1: bool = False, command: list[str] | None = None) -> subprocess.Popen[str]:
        prefix = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"] if pid_1 else []
        server = self.server_command() if command is None else command
        return self.spawn([*prefix, sys.executable, "-u", self.script("launch.py"), *server])

    def serve(self) -> None:
        """The stand-in server alone, without the launcher."""
        self.run.mkdir(exist_ok=True)
        server = self.spawn(self.server_command())
        (self.run / "server.pid").write_text(f"{server.pid}\n")
        eventually(lambda: accepts(self.config.port), "the stand-in server listens")

    def probe(self, path: str | None = None) -> subprocess.CompletedProcess[str]:
        env = os.environ | ({"PATH": path} if path else {})
        return subprocess.run(
            [sys.executable, self.script("liveness.py")], capture_output=True, text=True, timeout=60, env=env
        )

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def warm(self) -> bool:
        return (self.run / "warm").exists()

    def requests(self) -> list[dict[str, Any]]:
        path = self.folder / "requests.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def accepts(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex(("127.0.0.1", port)) == 0


def inside(unshared: subprocess.Popen[str]) -> int:
    """The process id, seen from here, of PID 1 in the namespace."""
    children = Path(f"/proc/{unshared.pid}/task/{unshared.pid}/children")
    eventually(lambda: children.read_text().split(), "the namespace has its first process")
    return int(children.read_text().split()[0])


def processes_of(folder: Path) -> list[int]:
    """Processes, in any PID namespace, whose command line names the folder of this test."""
    marks = (f"{folder}/".encode(), f"{folder}\0".encode())
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and any(mark in (entry / "cmdline").read_bytes() for mark in marks):
                found.append(int(entry.name))
    return found
