"""Starting and stopping processes by pidfile."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglpool.sandbox import processes
from sglpool.sandbox.errors import SandboxError
from sglpool.sandbox.processes import Process, ProcessTable
from support.waiting import wait_until


def process(name: str, *, script: str = "exec sleep 600", waiting_for: str = "", limit_s: float = 5) -> Process:
    return Process(
        name=name,
        argv=["/bin/sh", "-c", script],
        env={"PATH": "/usr/bin:/bin"},
        ready=lambda: waiting_for,
        ready_limit_s=limit_s,
    )


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.fixture
def table(tmp_path: Path) -> Iterator[ProcessTable]:
    table = ProcessTable(tmp_path)
    yield table
    table.stop_all()


def test_a_started_process_lives_in_its_own_session_and_stop_ends_it(table: ProcessTable) -> None:
    table.start(process("one"))
    pid = table.pid("one")
    assert table.alive("one")
    assert os.getsid(pid) == pid
    table.stop("one")
    assert not exists(pid)
    assert table.names() == []


def test_processes_are_listed_as_started_and_stopped_in_reverse(
    table: ProcessTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("zebra", "ant", "middle"):
        table.start(process(name))
    assert table.names() == ["zebra", "ant", "middle"]
    killed: list[int] = []
    expected = [table.pid(name) for name in ("middle", "ant", "zebra")]
    kill = os.kill

    def recording_kill(pid: int, number: int) -> None:
        killed.append(pid)
        kill(pid, number)

    monkeypatch.setattr(processes.os, "kill", recording_kill)
    table.stop_all()
    assert killed == expected


def test_a_process_deaf_to_sigterm_is_killed(table: ProcessTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STOP_LIMIT_S", 0.1)
    table.start(process("deaf", script="trap '' TERM; echo set; while :; do sleep 600; done"))
    wait_until(lambda: "set" in table.log_tail("deaf"), timeout_s=5, describe="the trap is set")
    pid = table.pid("deaf")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    table.stop("deaf")
    assert not exists(pid)
    for child in children:
        os.kill(int(child), signal.SIGKILL)


def test_a_recycled_pid_is_never_killed(table: ProcessTable, tmp_path: Path) -> None:
    sleep = shutil.which("sleep") or "sleep"
    with subprocess.Popen([sleep, "600"]) as stranger:
        (tmp_path / "run").mkdir()
        record = {"pid": stranger.pid, "startTicks": 1, "startedAt": 1}
        (tmp_path / "run/old.pid").write_text(json.dumps(record))
        assert not table.alive("old")
        table.stop("old")
        assert stranger.poll() is None
        stranger.kill()
    assert table.names() == []


def test_a_process_that_exits_while_starting_is_reported_with_its_last_words(table: ProcessTable) -> None:
    table.start(process("brief", script="echo port is taken >&2; exit 1"))
    with pytest.raises(SandboxError, match=r"(?s)brief exited while starting.*brief\.log.*port is taken"):
        table.wait_ready(process("brief", waiting_for="an answer"))


def test_a_process_that_never_serves_is_reported_at_its_limit(table: ProcessTable) -> None:
    table.start(process("stuck"))
    with pytest.raises(SandboxError, match=r"stuck is not ready after 0 s: an answer"):
        table.wait_ready(process("stuck", waiting_for="an answer", limit_s=0.01))


def test_an_unreadable_pidfile_counts_as_ended(table: ProcessTable, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/torn.pid").write_text('{"pid": 1')
    assert not table.alive("torn")
    table.stop_all()
    assert table.names() == []
