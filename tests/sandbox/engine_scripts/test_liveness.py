"""liveness.py, run as the kubelet runs it, against a stand-in server that misbehaves on demand."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from dataclasses import replace
from typing import Any

import pytest

from .pod import BUSY, CHUNKED_PREFILL, HANGS, Pod, accepts, eventually


def moved(load: dict[str, int], step: int) -> dict[str, int]:
    return load | {"num_used_tokens": load["num_used_tokens"] + 45 * step}


@pytest.mark.parametrize(
    ("settings", "code", "sentence"),
    [
        ({"chat": [[200, 0]]}, 0, ""),
        ({"chat": [[503, 0]]}, 0, ""),
        ({"chat": [[400, 0]]}, 0, ""),
        ({"chat": [[429, 0]]}, 0, ""),
        ({"chat": [[500, 0]]}, 1, "idle, and a one-token chat completion got status 500"),
        ({"chat": [[502, 0]]}, 1, "idle, and a one-token chat completion got status 502"),
        ({"chat": HANGS}, 1, "idle, and a one-token chat completion failed: no answer within 0.5 s"),
        ({"loads": BUSY, "chat": [[500, 0]]}, 0, ""),
        ({"loads": CHUNKED_PREFILL, "chat": [[500, 0]]}, 0, ""),
    ],
    ids=["200", "503", "400", "429", "500", "502", "hang", "busy", "chunked-prefill"],
)
def test_one_look_at_the_engine(pod: Pod, settings: dict[str, Any], code: int, sentence: str) -> None:
    if settings.get("chat") == HANGS:
        pod.configure(liveness=replace(pod.config.liveness, chat_timeout_s=0.5))
    pod.control(**settings)
    pod.serve()
    result = pod.probe()
    assert result.returncode == code
    assert (f"sglpool: liveness failure 1 of 3: {sentence}" in result.stdout) == bool(sentence)
    assert sentence in pod.log()


def test_a_dead_port_is_a_failure(pod: Pod) -> None:
    pod.run.mkdir()
    result = pod.probe()
    assert result.returncode == 1
    assert "load unknown, and a one-token chat completion failed" in result.stdout


def test_a_load_report_that_hangs_leaves_the_verdict_to_the_real_path(pod: Pod) -> None:
    pod.configure(liveness=replace(pod.config.liveness, read_timeout_s=0.3))
    pod.control(loads=None)
    pod.serve()
    assert pod.probe().returncode == 0
    assert len(pod.requests()) == 1


def test_a_port_that_accepts_and_never_answers_is_a_failure(pod: Pod) -> None:
    pod.run.mkdir()
    pod.configure(liveness=replace(pod.config.liveness, read_timeout_s=0.3, chat_timeout_s=0.5))
    with socket.create_server(("127.0.0.1", pod.config.port)):
        result = pod.probe()
    assert result.returncode == 1
    assert "no answer within 0.5 s" in result.stdout


def test_an_answer_that_never_ends_is_a_failure(pod: Pod) -> None:
    pod.run.mkdir()
    pod.configure(liveness=replace(pod.config.liveness, read_timeout_s=0.3, chat_timeout_s=0.5))
    drip = "yes A | while read -r letter; do printf %s $letter; sleep 0.05; done"
    script = f"""
import socket, subprocess
listener = socket.create_server(("127.0.0.1", {pod.config.port}))
while True:
    client, _ = listener.accept()
    subprocess.Popen(["timeout", "20", "sh", "-c", {drip!r}], stdout=client)
"""
    pod.spawn([sys.executable, "-c", script])
    eventually(lambda: accepts(pod.config.port), "the server listens")
    started = time.monotonic()
    result = pod.probe()
    assert time.monotonic() - started < 15, "each letter has started the limit anew"
    assert result.returncode == 1
    assert "a one-token chat completion failed: no answer within 0.5 s" in result.stdout


@pytest.mark.parametrize("load", [BUSY, CHUNKED_PREFILL], ids=["decode", "chunked-prefill"])
def test_busy_and_nothing_moves_for_three_runs_is_a_failure(pod: Pod, load: dict[str, int]) -> None:
    pod.control(loads=load)
    pod.serve()
    codes = [pod.probe().returncode for _ in range(3)]
    last = pod.probe()
    assert [*codes, last.returncode] == [0, 0, 0, 1]
    assert "no counter has moved for 3 runs" in last.stdout
    assert pod.requests() == [], "a busy engine is not asked"


def test_busy_and_moving_is_alive_for_ever(pod: Pod) -> None:
    pod.control()
    pod.serve()
    for step in range(6):
        pod.control(loads=moved(BUSY, step))
        assert pod.probe().returncode == 0


def test_tokens_in_the_metrics_count_as_movement(pod: Pod) -> None:
    pod.control()
    pod.serve()
    for step in range(6):
        metrics = f'sglang:generation_tokens_total{{is_streaming="true"}} {step}.0\n'
        pod.control(loads=BUSY, metrics=metrics)
        assert pod.probe().returncode == 0


def test_new_arrivals_do_not_count_as_movement(pod: Pod) -> None:
    pod.control()
    pod.serve()
    codes = []
    for step in range(4):
        pod.control(loads=BUSY | {"num_waiting_reqs": step})
        codes.append(pod.probe().returncode)
    assert codes == [0, 0, 0, 1]


def test_a_move_forgives_what_was(pod: Pod) -> None:
    pod.control(loads=BUSY)
    pod.serve()
    for _ in range(5):
        pod.probe()
    pod.control(loads=moved(BUSY, 1))
    assert pod.probe().returncode == 0
    assert pod.probe().returncode == 0, "one still run after a move is no failure"
    assert not (pod.run / "killing").exists()


def fake_tools(pod: Pod, **scripts: str) -> str:
    tools = pod.folder / "tools"
    tools.mkdir()
    for name, text in scripts.items():
        path = tools / name.replace("_", "-")
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    return f"{tools}:{os.environ['PATH']}"


def test_the_last_failure_dumps_the_state_and_marks_the_kill(pod: Pod) -> None:
    path = fake_tools(pod, nvidia_smi="echo GPU 0: Xid 79", py_spy='echo "stack of $3"')
    pod.control(chat=[[500, 0]])
    pod.serve()
    for number in (1, 2):
        assert pod.probe(path).returncode == 1
        assert not (pod.run / "killing").exists(), f"marked at failure {number} of 3"
        assert "dump" not in pod.log()
    assert pod.probe(path).returncode == 1
    assert (pod.run / "killing").exists()
    log = pod.log()
    assert "sglpool: liveness failure 3 of 3: idle, and a one-token chat completion got status 500" in log
    assert '"total_prefill_uncached_tokens": 6' in log
    assert "GPU 0: Xid 79" in log
    assert f"stack of {(pod.folder / 'server.pid').read_text()}" in log
    assert "sglpool: dump ended." in log


def test_tools_that_hang_or_are_missing_do_not_hold_the_kill_up(pod: Pod) -> None:
    path = fake_tools(pod, nvidia_smi="exec sleep 1000")
    liveness = replace(pod.config.liveness, failures=1, dump_timeout_s=0.5)
    pod.configure(liveness=liveness)
    pod.control(chat=[[500, 0]])
    pod.serve()
    started = time.monotonic()
    assert pod.probe(path).returncode == 1
    assert time.monotonic() - started < 20
    assert "nvidia-smi did not finish within" in pod.log()
    assert "py-spy is not in this image" in pod.log() or shutil.which("py-spy")


@pytest.mark.parametrize("failures", [1, 3])
def test_a_drain_wins_over_a_kill(pod: Pod, failures: int) -> None:
    pod.configure(liveness=replace(pod.config.liveness, failures=failures))
    pod.control(chat=[[500, 0]])
    pod.serve()
    (pod.run / "draining").touch()
    for _ in range(4):
        assert pod.probe().returncode == 0
    assert not (pod.run / "killing").exists()
    assert pod.requests() == [], "an engine that drains is not asked"


def test_a_drain_that_begins_during_the_dump_wins(pod: Pod) -> None:
    path = fake_tools(pod, nvidia_smi=f"touch {pod.run}/draining")
    pod.configure(liveness=replace(pod.config.liveness, failures=1))
    pod.control(chat=[[500, 0]])
    pod.serve()
    assert pod.probe(path).returncode == 0
    assert not (pod.run / "killing").exists()


def test_a_planned_stop_during_the_dump_has_all_its_time(pod: Pod) -> None:
    """The hook finds no marker of a kill, so it waits for the router, and the launcher for the whole drain."""
    pod.configure(liveness=replace(pod.config.liveness, failures=1), drain_s=1000, hung_drain_s=0.3)
    pod.control(on_term="ignore")
    launcher = pod.launch()
    eventually(pod.warm, "the warm marker")
    stop = f"sh {pod.script('prestop.sh')} 0 {pod.run} && kill -TERM {launcher.pid}"
    path = fake_tools(pod, nvidia_smi=f"{stop}; sleep 1")
    pod.control(chat=[[500, 0]], on_term="ignore")
    assert pod.probe(path).returncode == 0
    assert not (pod.run / "killing").exists()
    assert "SIGTERM: the server may finish its requests for 1000 s." in pod.log()
    assert launcher.poll() is None, "the drain goes on"
    assert pod.probe(path).returncode == 0, "and liveness leaves it alone"


def test_the_dump_goes_to_the_probe_when_the_log_cannot_be_opened(pod: Pod) -> None:
    pod.configure(liveness=replace(pod.config.liveness, failures=1, log_path=str(pod.folder)))
    pod.control(chat=[[500, 0]])
    pod.serve()
    assert "sglpool: dump ended." in pod.probe().stdout
