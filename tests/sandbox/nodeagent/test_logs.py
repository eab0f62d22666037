"""Logs of containers: one file a run, bounded, with a readable end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sglpool.sandbox.nodeagent import logs
from sglpool.sandbox.nodeagent.logreader import follow


def write_log(folder: Path, attempt: int, content: bytes) -> Path:
    path, descriptor = logs.open_log(folder, attempt)
    os.write(descriptor, content)
    os.close(descriptor)
    return path


def test_the_newest_run_is_the_current_one_and_two_are_kept(tmp_path: Path) -> None:
    for attempt in range(4):
        write_log(tmp_path, attempt, b"run %d\n" % attempt)
        assert (tmp_path / "current.log").read_text() == f"run {attempt}\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2.log", "3.log", "current.log"]


def test_a_run_that_begins_again_begins_with_an_empty_log(tmp_path: Path) -> None:
    write_log(tmp_path, 0, b"before\n")
    assert write_log(tmp_path, 0, b"after\n").read_bytes() == b"after\n"


def test_a_log_that_outgrows_its_limit_begins_again_under_its_writer(tmp_path: Path) -> None:
    path, descriptor = logs.open_log(tmp_path, 0)
    os.write(descriptor, b"x" * 100)
    assert not logs.limit_log(path, max_bytes=100)
    os.write(descriptor, b"y")
    assert logs.limit_log(path, max_bytes=100)
    os.write(descriptor, b"new")
    os.close(descriptor)
    assert path.read_bytes() == b"new"
    assert path.with_name("0.log.1").read_bytes() == b"x" * 100 + b"y"


def test_limiting_a_log_that_is_gone_is_harmless(tmp_path: Path) -> None:
    assert not logs.limit_log(tmp_path / "gone.log")


def test_a_follower_reads_to_the_end_of_the_run_and_no_longer(tmp_path: Path) -> None:
    path, descriptor = logs.open_log(tmp_path, 0)
    os.write(descriptor, b"one\n")
    pieces = follow(path)
    assert next(pieces) == b"one\n"
    os.write(descriptor, b"two\n")
    logs.complete_log(path)
    assert list(pieces) == [b"two\n"]
    os.close(descriptor)


def test_a_run_whose_agent_died_is_over_once_there_is_another(tmp_path: Path) -> None:
    path = write_log(tmp_path, 0, b"one\n")
    assert not logs.is_complete(path)
    write_log(tmp_path, 1, b"again\n")
    assert list(follow(path)) == [b"one\n"]
    path.unlink()
    assert list(follow(path)) == []


def test_a_run_that_begins_again_is_not_complete(tmp_path: Path) -> None:
    logs.complete_log(write_log(tmp_path, 0, b"before\n"))
    assert not logs.is_complete(write_log(tmp_path, 0, b"after\n"))


@pytest.mark.parametrize(
    ("content", "end"),
    [
        (b"", ""),
        (b"one\ntwo\n", "one\ntwo\n"),
        (b"".join(b"%d\n" % number for number in range(200)), "".join(f"{number}\n" for number in range(120, 200))),
        (b"a" * 5000, "a" * 2048),
        (b"\xff\xfe end", "�� end"),
    ],
)
def test_tail_is_short(tmp_path: Path, content: bytes, end: str) -> None:
    assert logs.tail(write_log(tmp_path, 0, content)) == end


def test_a_termination_message_is_bounded(tmp_path: Path) -> None:
    own = tmp_path / "message"
    own.write_bytes(b"m" * 10_000)
    assert logs.termination_message(own, tmp_path / "none", from_log=True) == "m" * 4096
