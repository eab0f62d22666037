"""The scripts of the engine pod, run as the pod runs them, against a stand-in server that misbehaves on demand.

Plain processes, no cluster. The PID 1 tests use a PID namespace of their own, as a container does.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from sglpool.render.scripts import (
    EngineScriptConfig,
    Liveness,
    WarmUp,
    WeightsPolicy,
    WeightsSource,
    engine_files,
)

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


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    config = EngineScriptConfig(
        served_model_name="kimi",
        weights=(),
        port=free_port(),
        drain_s=30,
        hung_drain_s=0.5,
        ready_timeout_s=30,
        ready_poll_s=0.02,
        warm_up=FAST_WARM_UP,
        liveness=Liveness(
            still_runs=3,
            failures=3,
            chat_timeout_s=20,
            read_timeout_s=10,
            dump_timeout_s=30,
            log_path=str(tmp_path / "log"),
        ),
        weights_policy=WeightsPolicy(lock_poll_s=0.02, report_every_s=0.05, backoff_s=0.02, lock_timeout_s=30),
        cache_dirs=(str(tmp_path / "cache" / "compiled" / "abc-sm100" / "triton"),),
        run_dir=str(tmp_path / "run"),
    )
    pod = Pod(tmp_path, config)
    pod.configure()
    pod.control()
    yield pod
    for process in pod.processes:
        if process.poll() is None:
            process.kill()
        process.wait(20)
    for pid in processes_of(tmp_path):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


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


# --- liveness.py ---


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
    pod.run.mkdir()
    (pod.run / "draining").touch()
    for _ in range(4):
        assert pod.probe().returncode == 0
    assert not (pod.run / "killing").exists()


def test_a_drain_that_begins_during_the_dump_wins(pod: Pod) -> None:
    path = fake_tools(pod, nvidia_smi=f"touch {pod.run}/draining")
    pod.configure(liveness=replace(pod.config.liveness, failures=1))
    pod.control(chat=[[500, 0]])
    pod.serve()
    assert pod.probe(path).returncode == 0
    assert not (pod.run / "killing").exists()


def test_the_dump_goes_to_the_probe_when_the_log_cannot_be_opened(pod: Pod) -> None:
    pod.configure(liveness=replace(pod.config.liveness, failures=1, log_path=str(pod.folder)))
    pod.control(chat=[[500, 0]])
    pod.serve()
    assert "sglpool: dump ended." in pod.probe().stdout


# --- weights.py ---


def safetensors(path: Path, size_bytes: int = 1000) -> None:
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "b": {"dtype": "U8", "shape": [size_bytes], "data_offsets": [8, size_bytes]},
            "a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]},
        }
    ).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(size_bytes))


def model_folder(folder: Path, **config: Any) -> Path:
    """A good model of three shards."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"architectures": ["KimiForCausalLM"]} | config))
    names = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
    for name in names:
        safetensors(folder / name)
    index = {"weight_map": {f"tensor{number}": name for number, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def volume(folder: Path, role: Any = "model") -> WeightsSource:
    return WeightsSource(role=role, kind="persistentVolumeClaim", path=str(folder))


@dataclass
class Hub:
    """The stand-in for the hub, and a cache to download into."""

    pod: Pod

    @property
    def folder(self) -> Path:
        return self.pod.folder / "hub"

    def source(self, cache: Path | None = None, **changes: Any) -> WeightsSource:
        path = (cache or self.pod.folder / "node") / "models" / "moonshotai" / "Kimi-K2.6" / "c0ffee"
        source = WeightsSource(
            role="model", kind="huggingFace", path=str(path), repo="moonshotai/Kimi-K2.6", revision="c0ffee"
        )
        return replace(source, **changes)

    def behave(self, **settings: Any) -> None:
        (self.folder / "hub.json").write_text(json.dumps(settings))

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def hub(pod: Pod) -> Hub:
    hub = Hub(pod)
    model_folder(hub.folder / "repo")
    hub.behave()
    pod.configure(weights=(hub.source(),))
    return hub


def weights_env(pod: Pod, hostname: str = "kimi-b200-0") -> dict[str, str]:
    return {"PYTHONPATH": str(STUBS), "FAKE_HUB": str(pod.folder / "hub"), "HF_TOKEN": "t", "HOSTNAME": hostname}


def run_weights(pod: Pod) -> tuple[int, str]:
    result = subprocess.run(
        [sys.executable, pod.script("weights.py")],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | weights_env(pod),
    )
    assert "Traceback" not in result.stderr + result.stdout
    return result.returncode, result.stdout


def test_a_good_folder_is_reported_with_its_size(pod: Pod) -> None:
    folder = model_folder(pod.folder / "model")
    pod.configure(weights=(volume(folder),))
    code, output = run_weights(pod)
    total = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert code == 0
    assert f"sglpool: model: 3 weight files with {total} bytes" in output
    assert f"in {folder} are whole" in output


def test_a_truncated_file_is_named_with_both_sizes(pod: Pod) -> None:
    folder = model_folder(pod.folder / "model")
    victim = folder / "model-00002-of-00003.safetensors"
    whole = victim.stat().st_size
    victim.write_bytes(victim.read_bytes()[:-1])
    pod.configure(weights=(volume(folder),))
    code, output = run_weights(pod)
    assert code == 1
    assert f"sglpool: model: {victim} has {whole - 1} bytes where its header says {whole}.\n" in output
    assert f"sglpool: Copy these files to {folder} again" in output
    assert victim.exists(), "a volume of the user is never changed"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "has 0 bytes, too few for a safetensors file."),
        (b"\xff" * 64, "has 64 bytes, but its header alone would be 18446744073709551615 bytes long."),
        (struct.pack("<Q", 4) + b"nope", "(12 bytes) has a header that is not one of a safetensors file."),
        (struct.pack("<Q", 9) + b'{"a": {}}', "(17 bytes) has a header that is not one of a safetensors file."),
        (struct.pack("<Q", 2) + b"[]", "(10 bytes) has a header that is not one of a safetensors file."),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer of 43 bytes"),
    ],
    ids=["empty", "garbage", "not-json", "no-offsets", "not-an-object", "lfs"],
)
def test_a_wrong_header_is_a_sentence(pod: Pod, content: bytes, sentence: str) -> None:
    folder = model_folder(pod.folder / "model")
    victim = folder / "model-00003-of-00003.safetensors"
    victim.write_bytes(content)
    pod.configure(weights=(volume(folder),))
    code, output = run_weights(pod)
    assert code == 1
    assert f"{victim} {sentence}" in output


def test_a_missing_shard_is_named(pod: Pod) -> None:
    folder = model_folder(pod.folder / "model")
    (folder / "model-00002-of-00003.safetensors").unlink()
    pod.configure(weights=(volume(folder),))
    code, output = run_weights(pod)
    assert code == 1
    assert f"{folder}/model-00002-of-00003.safetensors is missing" in output
    (folder / "model.safetensors.index.json").unlink()
    assert run_weights(pod)[0] == 1, "the numbers in the names tell it too"


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("config.json", None, "config.json is missing"),
        ("config.json", "{", "config.json (1 bytes) is not a JSON object."),
        ("config.json", "{}", "config.json names no `architectures`"),
        ("model.safetensors.index.json", "{}", "(2 bytes) is not an index of weights."),
    ],
)
def test_broken_json_files_are_named(pod: Pod, name: str, content: str | None, sentence: str) -> None:
    folder = model_folder(pod.folder / "model")
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    pod.configure(weights=(volume(folder),))
    code, output = run_weights(pod)
    assert code == 1
    assert sentence in output


def test_folders_without_weights(pod: Pod) -> None:
    pod.configure(weights=(volume(pod.folder / "nowhere"),))
    assert run_weights(pod) == (
        1,
        f"sglpool: model: {pod.folder}/nowhere is not a folder.\n"
        f"sglpool: Copy these files to {pod.folder}/nowhere again; the pod starts once they are whole.\n",
    )
    folder = pod.folder / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["X"]}')
    pod.configure(weights=(volume(folder),))
    assert "holds no *.safetensors file." in run_weights(pod)[1]
    (folder / "pytorch_model.bin").touch()
    code, output = run_weights(pod)
    assert code == 0
    assert "1 of another format are not checked" in output


@pytest.mark.parametrize(
    ("config", "code", "sentence"),
    [
        ({"target_model_name_or_path": "moonshotai/Kimi-K2.6"}, 0, None),
        ({"speculators_config": {"verifier": {"name_or_path": "moonshotai/Kimi-K2.6"}}}, 0, None),
        ({}, 0, "names no target"),
        ({"target_model_name_or_path": "/data/some-model"}, 0, "cannot tell whether this is it"),
        ({"target_model_name_or_path": "zai-org/GLM-5.1"}, 1, "was trained for zai-org/GLM-5.1, but the model is"),
        ({"architectures": []}, 1, "names no `architectures`"),
    ],
)
def test_a_draft_model_fits_its_target(pod: Pod, config: dict[str, Any], code: int, sentence: str | None) -> None:
    model = replace(volume(model_folder(pod.folder / "model")), repo="nvidia/Kimi-K2.6-NVFP4")
    draft = volume(model_folder(pod.folder / "draft", **config), role="draft")
    pod.configure(weights=(model, draft))
    result, output = run_weights(pod)
    assert result == code
    assert (sentence or "draft: 3 weight files") in output


def test_a_download_is_verified_and_not_repeated(hub: Hub) -> None:
    assert run_weights(hub.pod)[0] == 0
    assert run_weights(hub.pod)[0] == 0
    assert hub.calls() == ["moonshotai/Kimi-K2.6 c0ffee t"]


def test_two_replicas_of_a_node_download_once(hub: Hub) -> None:
    hub.behave(hold=True)
    command = [sys.executable, hub.pod.script("weights.py")]
    first = hub.pod.spawn(command, weights_env(hub.pod, "kimi-b200-0"))
    eventually(hub.calls, "the first download has begun")
    second = hub.pod.spawn(command, weights_env(hub.pod, "kimi-b200-1"))
    eventually(lambda: "waiting for kimi-b200-0 (since " in hub.pod.log(), "the second says for whom it waits")
    (hub.folder / "go").touch()
    assert first.wait(20) == 0
    assert second.wait(20) == 0
    assert len(hub.calls()) == 1
    assert hub.pod.log().count("are whole") == 2


def test_a_holder_that_dies_frees_the_lock(hub: Hub) -> None:
    hub.behave(hold=True)
    command = [sys.executable, hub.pod.script("weights.py")]
    first = hub.pod.spawn(command, weights_env(hub.pod))
    eventually(hub.calls, "the first download has begun")
    first.kill()
    (hub.folder / "go").touch()
    assert run_weights(hub.pod)[0] == 0
    assert len(hub.calls()) == 2


def test_waiting_for_the_lock_has_a_limit(hub: Hub) -> None:
    hub.behave(hold=True)
    command = [sys.executable, hub.pod.script("weights.py")]
    hub.pod.spawn(command, weights_env(hub.pod, "kimi-b200-0"))
    eventually(hub.calls, "the first download has begun")
    hub.pod.configure(weights_policy=replace(hub.pod.config.weights_policy, lock_timeout_s=0.3))
    code, output = run_weights(hub.pod)
    assert code == 1
    assert "c0ffee.lock, held by kimi-b200-0 (since " in output


@pytest.mark.parametrize("pid_1", [False, pytest.param(True, marks=needs_root)])
def test_sigterm_ends_a_download_at_once(hub: Hub, pid_1: bool) -> None:
    hub.behave(hold=True)
    prefix = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"] if pid_1 else []
    process = hub.pod.spawn([*prefix, sys.executable, hub.pod.script("weights.py")], weights_env(hub.pod))
    eventually(hub.calls, "the download has begun")
    os.kill(inside(process) if pid_1 else process.pid, signal.SIGTERM)
    assert process.wait(10) == 143
    assert "a download goes on at the next start" in hub.pod.log()


def test_a_download_goes_on_after_the_network_failed(hub: Hub) -> None:
    hub.behave(fail=["network", "network"])
    code, output = run_weights(hub.pod)
    assert code == 0
    assert "the download broke off: connection reset by peer. Going on in 0.02 s." in output
    assert len(hub.calls()) == 3


def test_a_download_does_not_try_for_ever(hub: Hub) -> None:
    hub.behave(fail=["network"] * 9)
    code, output = run_weights(hub.pod)
    assert code == 1
    assert "failed 5 times; the last time: connection reset by peer." in output
    assert len(hub.calls()) == 5


@pytest.mark.parametrize(("status", "word"), [(401, "HF_TOKEN"), (403, "licence"), (404, "revision")])
def test_what_the_hub_refuses_is_not_asked_again(hub: Hub, status: int, word: str) -> None:
    hub.behave(fail=[status] * 9)
    code, output = run_weights(hub.pod)
    assert code == 1
    assert "cannot download moonshotai/Kimi-K2.6 at c0ffee" in output
    assert word in output
    assert len(hub.calls()) == 1


def test_a_file_that_arrives_truncated_is_fetched_again(hub: Hub) -> None:
    hub.behave(fail=["truncate"])
    code, output = run_weights(hub.pod)
    assert code == 0
    assert "where its header says" in output
    assert "Fetching it again." in output
    assert len(hub.calls()) == 2


def test_a_file_that_stays_broken_is_an_error(hub: Hub) -> None:
    hub.behave(fail=["truncate"] * 9)
    code, output = run_weights(hub.pod)
    assert code == 1
    assert "Fetching again did not help: look at moonshotai/Kimi-K2.6 at c0ffee" in output
    assert len(hub.calls()) == 2


def test_a_file_that_broke_after_the_download_is_fetched_again(hub: Hub) -> None:
    assert run_weights(hub.pod)[0] == 0
    victim = Path(hub.source().path, "model-00001-of-00003.safetensors")
    victim.write_bytes(b"")
    assert run_weights(hub.pod)[0] == 0
    assert victim.stat().st_size > 1000
    assert len(hub.calls()) == 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mount)], capture_output=True)
    if made.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


@pytest.mark.parametrize("known_by", ["hub", "catalogue"])
def test_a_disk_that_is_too_small_is_found_before_the_download(hub: Hub, small_disk: Path, known_by: str) -> None:
    safetensors(hub.folder / "repo" / "model-00001-of-00003.safetensors", 600_000)
    hub.behave(sizes_known=known_by == "hub")
    source = hub.source(small_disk, expected_bytes=700_000 if known_by == "catalogue" else None)
    hub.pod.configure(weights=(source,))
    code, output = run_weights(hub.pod)
    free = shutil.disk_usage(small_disk).free
    assert code == 1
    assert hub.calls() == []
    assert f"the disk of {source.path} lacks " in output
    assert f"are still to download, {free} are free." in output


def test_a_disk_that_fills_up_is_named(hub: Hub, small_disk: Path) -> None:
    safetensors(hub.folder / "repo" / "model-00001-of-00003.safetensors", 600_000)
    hub.behave(sizes_known=False)
    source = hub.source(small_disk)
    hub.pod.configure(weights=(source,))
    code, output = run_weights(hub.pod)
    assert code == 1
    assert len(hub.calls()) == 1
    assert f"the disk of {source.path} is full" in output


def test_a_cache_that_cannot_be_written_is_named(hub: Hub) -> None:
    (hub.pod.folder / "node").write_text("a file, not a folder")
    code, output = run_weights(hub.pod)
    assert code == 1
    assert f"cannot provide the weights: Not a directory ({hub.source().path})" in output
