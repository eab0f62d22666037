"""launch.py and prestop.sh, run as the pod runs them, against a stand-in server that misbehaves on demand.

Plain processes, no cluster. The PID 1 tests use a PID namespace of their own, as a container does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from .pod import BUSY, CHUNKED_PREFILL, FAST_WARM_UP, HANGS, IDLE, Pod, accepts, alive, eventually, inside, needs_root

# --- launch.py: warm-up ---


def test_warm_comes_after_chat_long_prompts_and_image(pod: Pod) -> None:
    pod.configure(warm_up=replace(FAST_WARM_UP, image=True))
    pod.launch()
    eventually(pod.warm, "the warm marker")
    contents = [request["body"]["messages"][0]["content"] for request in pod.requests()]
    assert len(contents) == 4
    assert {request["path"] for request in pod.requests()} == {"/v1/chat/completions"}
    assert {request["body"]["model"] for request in pod.requests()} == {"kimi"}
    assert not any(request["warm"] for request in pod.requests()), "warm before the last request had succeeded"
    assert [len(prompt.split()) for prompt in contents[1:3]] == [50, 50]
    assert contents[1].split()[:20] != contents[2].split()[:20], "the second prompt would come from the cache"
    assert contents[3][0]["image_url"]["url"].startswith("data:image/png;base64,")
    assert "sglpool: warm: this replica can take traffic." in pod.log()


def test_not_warm_while_the_server_accepts_but_is_not_ready(pod: Pod) -> None:
    pod.control(ready=False)
    pod.launch()
    eventually((pod.folder / "not-ready-twice").exists, "the launcher has asked twice")
    assert not pod.warm()
    assert pod.requests() == []
    pod.control(ready=True)
    eventually(pod.warm, "the warm marker")


def test_a_stale_marker_of_an_earlier_container_is_removed(pod: Pod) -> None:
    pod.run.mkdir()
    for name in ("warm", "draining", "killing", "liveness.json"):
        (pod.run / name).touch()
    pod.control(ready=False)
    pod.launch()
    eventually(lambda: "started" in pod.log(), "the server is started")
    assert [path.name for path in pod.run.iterdir()] == ["server.pid"]


def test_a_pod_that_is_stopped_while_its_container_starts_does_not_load(pod: Pod) -> None:
    # SIGTERM came and was lost: PID 1 has no default action, and Python had not got to blocking it yet.
    pod.run.mkdir()
    (pod.run / "draining").touch()
    soon = time.time() + 60
    os.utime(pod.run / "draining", (soon, soon))
    assert pod.launch().wait(20) == 143
    assert "being stopped already" in pod.log()
    assert "started" not in pod.log()


def test_a_warm_up_request_that_fails_in_passing_is_sent_again(pod: Pod) -> None:
    pod.control(chat=[[500, 0], [503, 0], [200, 0]])
    pod.launch()
    eventually(pod.warm, "the warm marker")
    assert "warm-up chat: status 500" in pod.log()


@pytest.mark.parametrize(
    ("chat", "attempts", "sentence"),
    [
        ([[200, 0], [500, 0]], 1 + 3, "the warm-up request (long prompt 1) failed: status 500: "),
        ([[400, 0]], 1, "the warm-up request (chat) failed: status 400: "),
        (HANGS, 3, "the warm-up request (chat) failed: no answer within 0.3 s"),
    ],
)
def test_a_failed_warm_up_ends_the_container_with_a_sentence(
    pod: Pod, chat: list[list[float]], attempts: int, sentence: str
) -> None:
    pod.configure(warm_up=replace(FAST_WARM_UP, request_timeout_s=0.3 if chat[0][1] else 20))
    pod.control(chat=chat, rank=True)
    launcher = pod.launch()
    assert launcher.wait(30) == 1
    assert f"sglpool: {sentence}" in pod.log()
    assert not pod.warm()
    assert len(pod.requests()) == attempts
    assert not alive(int((pod.folder / "server.pid").read_text()))


def test_a_server_that_never_gets_ready_has_a_limit(pod: Pod) -> None:
    pod.configure(ready_timeout_s=0.5)
    pod.control(ready=False)
    assert pod.launch().wait(30) == 1
    assert "the server was not ready after 0.5 s" in pod.log()


def test_the_warm_up_as_a_whole_has_a_limit(pod: Pod) -> None:
    pod.configure(warm_up=replace(FAST_WARM_UP, timeout_s=0.5, request_timeout_s=20))
    pod.control(chat=HANGS)
    assert pod.launch().wait(30) == 1
    assert "the warm-up request (chat) failed" in pod.log()


def test_the_launcher_makes_the_folders_of_the_compiled_kernels(pod: Pod) -> None:
    pod.launch()
    eventually(pod.warm, "the warm marker")
    assert Path(pod.config.cache_dirs[0]).is_dir()


def test_a_cache_folder_that_cannot_be_made_is_named(pod: Pod) -> None:
    (pod.folder / "cache").write_text("a file, not a folder")
    assert pod.launch().wait(30) == 1
    assert "sglpool: cannot start: Not a directory" in pod.log()
    assert pod.config.cache_dirs[0].rpartition("/")[0] in pod.log()


# --- launch.py: exits and signals ---


@pytest.mark.parametrize(("command", "code"), [(["sh", "-c", "exit 3"], 3), (["sh", "-c", "kill -9 $$"], 137)])
def test_the_exit_code_of_the_server_is_passed_on(pod: Pod, command: list[str], code: int) -> None:
    assert pod.launch(command=command).wait(30) == code
    assert f"the server ended before it was warm with exit code {code}." in pod.log()


def test_a_server_that_is_not_in_the_image_is_a_sentence(pod: Pod) -> None:
    assert pod.launch(command=["no-such-server"]).wait(30) == 1
    assert "sglpool: cannot start: No such file or directory (no-such-server)." in pod.log()


def test_a_launcher_without_a_server_command_says_what_it_needs(pod: Pod) -> None:
    assert pod.launch(command=[]).wait(30) == 2
    assert "launch.py needs the server's command line" in pod.log()


@pytest.mark.parametrize("pid_1", [False, pytest.param(True, marks=needs_root)])
def test_sigterm_while_loading_kills_at_once(pod: Pod, pid_1: bool) -> None:
    pod.configure(drain_s=1000)
    pod.control(ready=False, rank=True)
    launcher = pod.launch(pid_1=pid_1)
    eventually((pod.folder / "rank-up").exists, "the rank is up")
    eventually(lambda: accepts(pod.config.port), "the server listens")
    os.kill(inside(launcher) if pid_1 else launcher.pid, signal.SIGTERM)
    assert launcher.wait(10) == 143
    assert "SIGTERM before the server was warm: killing it at once." in pod.log()
    assert not (pod.folder / "rank-got-sigterm").exists()
    eventually(lambda: not accepts(pod.config.port), "the server is gone")


def test_sigterm_during_the_warm_up_kills_at_once(pod: Pod) -> None:
    pod.control(chat=HANGS)
    launcher = pod.launch()
    eventually(pod.requests, "the first warm-up request")
    launcher.terminate()
    assert launcher.wait(10) == 143


@pytest.mark.parametrize("pid_1", [False, pytest.param(True, marks=needs_root)])
def test_sigterm_once_warm_reaches_the_server_and_not_its_ranks(pod: Pod, pid_1: bool) -> None:
    pod.control(rank=True, on_term="ignore")
    launcher = pod.launch(pid_1=pid_1)
    eventually(pod.warm, "the warm marker")
    eventually((pod.folder / "rank-up").exists, "the rank is up")
    os.kill(inside(launcher) if pid_1 else launcher.pid, signal.SIGTERM)
    eventually((pod.folder / "server-got-sigterm").exists, "the server has the signal")
    assert (pod.run / "draining").exists(), "liveness must not act during a drain"
    assert launcher.poll() is None, "the launcher waits for the server"
    with contextlib.suppress(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{pod.config.port}/finish", timeout=10)
    assert launcher.wait(20) == 0
    assert "SIGTERM: the server may finish its requests for 30 s." in pod.log()
    assert "s after SIGTERM with exit code 0." in pod.log()
    assert not (pod.folder / "rank-got-sigterm").exists()


def test_a_group_wide_interrupt_does_not_reach_the_server(pod: Pod) -> None:
    pod.control(ready=True)
    pod.launch()
    eventually(pod.warm, "the warm marker")
    server = int((pod.folder / "server.pid").read_text())
    assert os.getsid(server) == server
    assert os.getsid(server) != os.getsid(pod.processes[0].pid)


@pytest.mark.parametrize(
    ("loads", "sentence"),
    [
        (BUSY, "Requests cut: 4 (3 running, 1 waiting)."),
        (IDLE, "Requests cut: 0 (0 running, 0 waiting).\n"),
        (CHUNKED_PREFILL, "Requests cut: 0 (0 running, 0 waiting). A long prompt was being read"),
        (None, "Requests cut: unknown (no answer within 2 s)."),
    ],
)
def test_after_the_drain_time_everything_is_killed_and_counted(
    pod: Pod, loads: dict[str, int] | None, sentence: str
) -> None:
    pod.configure(drain_s=0.3)
    pod.control(on_term="ignore", rank=True, loads=loads)
    launcher = pod.launch()
    eventually(pod.warm, "the warm marker")
    launcher.terminate()
    assert launcher.wait(20) == 137
    assert f"sglpool: the server still runs 0.3 s after SIGTERM: killing it. {sentence}" in pod.log()
    assert not alive(int((pod.folder / "server.pid").read_text()))


def test_a_second_sigterm_changes_nothing(pod: Pod) -> None:
    pod.control(on_term="ignore")
    launcher = pod.launch()
    eventually(pod.warm, "the warm marker")
    for _ in range(2):
        launcher.terminate()
        eventually((pod.folder / "server-got-sigterm").exists, "the server has the signal")
    os.kill(int((pod.folder / "server.pid").read_text()), signal.SIGKILL)
    assert launcher.wait(20) == 137
    assert pod.log().count("the server may finish its requests") == 1


def test_a_server_given_up_by_liveness_is_not_waited_for(pod: Pod) -> None:
    pod.configure(drain_s=1000, hung_drain_s=0.3)
    pod.control(on_term="ignore")
    launcher = pod.launch()
    eventually(pod.warm, "the warm marker")
    (pod.run / "killing").touch()
    launcher.terminate()
    assert launcher.wait(20) == 137
    assert "the server still runs 0.3 s after SIGTERM" in pod.log()


def test_ranks_do_not_outlive_a_server_that_crashed(pod: Pod) -> None:
    pod.control(rank=True)
    launcher = pod.launch()
    eventually(pod.warm, "the warm marker")
    eventually((pod.folder / "rank-up").exists, "the rank is up")
    server = int((pod.folder / "server.pid").read_text())
    (rank,) = map(int, Path(f"/proc/{server}/task/{server}/children").read_text().split())
    os.kill(server, signal.SIGSEGV)
    assert launcher.wait(20) == 139
    assert not alive(rank)
    assert "the server ended while serving with exit code 139." in pod.log()


def test_the_server_dies_with_the_launcher(pod: Pod) -> None:
    launcher = pod.launch()
    eventually(pod.warm, "the warm marker")
    server = int((pod.folder / "server.pid").read_text())
    launcher.kill()
    eventually(lambda: not alive(server), "the server is dead")


@pytest.mark.parametrize("pid_1", [False, pytest.param(True, marks=needs_root)])
def test_orphans_are_reaped(pod: Pod, pid_1: bool) -> None:
    pod.control(orphan=True)
    launcher = pod.launch(pid_1=pid_1)
    eventually(pod.warm, "the warm marker")
    top = inside(launcher) if pid_1 else launcher.pid

    def children() -> list[str]:
        return Path(f"/proc/{top}/task/{top}/children").read_text().split()

    eventually(lambda: len(children()) == 1, "the launcher has the server as its only child, and no zombie")
    assert (pod.folder / "orphan.pid").exists()


# --- prestop.sh ---


@pytest.mark.parametrize(
    ("markers", "waits", "draining"),
    [({"warm"}, True, True), (set(), False, True), ({"warm", "killing"}, False, False)],
)
def test_prestop_waits_for_the_router_only_when_it_helps(
    pod: Pod, markers: set[str], waits: bool, draining: bool
) -> None:
    pod.run.mkdir()
    for name in markers:
        (pod.run / name).touch()
    # `sleep` only notes that it was called.
    tools = pod.folder / "tools"
    tools.mkdir()
    (tools / "sleep").write_text(f'#!/bin/sh\necho "$1" > {pod.folder}/slept\n')
    (tools / "sleep").chmod(0o755)
    env = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"}
    subprocess.run(["/bin/sh", pod.script("prestop.sh"), "5", str(pod.run)], check=True, timeout=20, env=env)
    slept = pod.folder / "slept"
    assert (slept.read_text() if slept.exists() else None) == ("5\n" if waits else None)
    assert (pod.run / "draining").exists() is draining
