"""A picker that dies or hangs is started again beside Envoy; one that never comes up is somebody else's business."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from support.waiting import wait_until

LOOK_S = 0.02
HEAD = """
import os, signal, sys, time
from pathlib import Path
from sglpool.picker.supervisor import Supervisor

out = Path(sys.argv[1])

def say(word):
    with out.open("a") as file:
        file.write(f"{word} {os.getpid()}\\n")

def up(beat, seconds=60.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        beat()
        time.sleep(0.005)

def work(beat, restarts):
"""
TAIL = f"""

sys.exit(Supervisor(work, look_s={LOOK_S}).run())
"""


class Supervised:
    """A supervisor as a process, and what its children wrote."""

    def __init__(self, path: Path, body: str) -> None:
        self._path = path
        lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
        self.process = subprocess.Popen([sys.executable, "-c", HEAD + lines + TAIL, str(path)], stderr=subprocess.PIPE)

    def lives(self) -> list[tuple[str, int]]:
        """What each child said at its start, and its process id."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        return [(line.rpartition(" ")[0], int(line.rpartition(" ")[2])) for line in lines]

    def await_lives(self, count: int) -> list[tuple[str, int]]:
        return wait_until(
            lambda: found if len(found := self.lives()) >= count else [],
            timeout_s=20,
            describe=lambda: f"{count} lives: {self.lives()}",
            interval_s=0.01,
        )

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(timeout=20)


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Callable[[str], Supervised]]:
    made: list[Supervised] = []

    def make(body: str) -> Supervised:
        made.append(Supervised(tmp_path / "lives", body))
        return made[-1]

    yield make
    for each in made:
        each.process.kill()
        each.process.communicate(timeout=10)


def test_a_picker_that_is_killed_is_started_again_and_knows_how_often(supervised: Callable[[str], Supervised]) -> None:
    one = supervised("beat()\nsay(f'start {restarts}')\nup(beat)\nreturn 0")
    for number in range(3):
        word, child = one.await_lives(number + 1)[number]
        assert word == f"start {number}"
        if number < 2:
            os.kill(child, signal.SIGKILL)
    assert one.end() == 128 + signal.SIGTERM, "the picker itself decides how it ends"


def test_a_picker_that_fails_is_started_again(supervised: Callable[[str], Supervised]) -> None:
    one = supervised("say('start')\nup(beat, 0.3)\nraise RuntimeError('a task failed')")
    one.await_lives(3)
    assert one.process.poll() is None


def test_a_picker_that_hangs_is_killed_and_started_again(supervised: Callable[[str], Supervised]) -> None:
    one = supervised("say(f'start {restarts}')\nup(beat, 0.3 if restarts == 0 else 60)\ntime.sleep(60)")
    (_, first), (_, second) = one.await_lives(2)
    assert not psutil.pid_exists(first), "the one that hung is gone"
    assert psutil.pid_exists(second)


def test_a_picker_that_never_comes_up_is_left_to_the_kubelet(supervised: Callable[[str], Supervised]) -> None:
    one = supervised("say('start')\nreturn 3")
    assert one.process.wait(timeout=20) == 3
    assert len(one.lives()) == 1


def test_sigterm_is_passed_on_and_the_picker_has_its_time(supervised: Callable[[str], Supervised]) -> None:
    body = """
ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
say("start")
while not ended:
    up(beat, 0.02)
up(beat, 0.2)
say("saved")
return 0
"""
    one = supervised(body)
    one.await_lives(1)
    assert one.end() == 0
    assert [word for word, _ in one.lives()] == ["start", "saved"]


def test_a_supervisor_that_dies_takes_the_picker_along(supervised: Callable[[str], Supervised]) -> None:
    one = supervised("say('start')\nup(beat)\nreturn 0")
    ((_, child),) = one.await_lives(1)
    picker = psutil.Process(child)
    one.process.kill()
    assert picker.wait(timeout=20) is None, "two pickers must not answer one Envoy"
