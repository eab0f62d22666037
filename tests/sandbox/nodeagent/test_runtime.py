"""Containers as processes: what they see, how they end, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sglpool.sandbox.errors import SandboxError
from sglpool.sandbox.nodeagent import memory
from sglpool.sandbox.nodeagent.runtime import Runtime, StartFailed, faults_path
from support.waiting import wait_until

from .conftest import POD_IP, FakeObjects, Pods

LIMIT_S = 30.0
WAIT_FOR_TERM = "trap 'echo stopping; exit 3' TERM; echo ready; while :; do sleep 0.05; done"


def living(namespace: str) -> list[int]:
    """Processes of a PID namespace; dead ones that nobody collects do not count."""
    return [pid for pid in memory.Census().members(namespace) if memory.resident_bytes(pid)]


async def seen_in_log(pods: Pods, text: str) -> None:
    await asyncio.to_thread(
        wait_until, lambda: text in pods.log(), timeout_s=LIMIT_S, describe=lambda: f"{text!r} in {pods.log()!r}"
    )


async def test_command_is_process_1_and_writes_the_log(pods: Pods) -> None:
    container = await pods.start("sh", "-c", "echo out $$$$; echo err >&2")
    exit_ = await container.wait()
    assert (exit_.code, exit_.reason, exit_.signal) == (0, "Completed", 0)
    assert pods.log() == "out 1\nerr\n"
    assert exit_.started_at <= exit_.finished_at
    assert container.id.startswith("sandbox://")
    assert container.image == "tools:1"


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [("exit 0", 0, "Completed"), ("exit 7", 7, "Error"), ("exit 137", 137, "Error")],
)
async def test_exit_code_passes_through(pods: Pods, script: str, code: int, reason: str) -> None:
    exit_ = await (await pods.start("sh", "-c", script)).wait()
    assert (exit_.code, exit_.reason) == (code, reason)


async def test_signal_reaches_process_1_alone(pods: Pods) -> None:
    container = await pods.start("sh", "-c", WAIT_FOR_TERM)
    await seen_in_log(pods, "ready")
    container.signal(signal.SIGTERM)
    assert (await container.wait()).code == 3
    assert pods.log() == "ready\nstopping\n"


async def test_signal_without_a_handler_is_lost_and_a_kill_is_not(pods: Pods) -> None:
    container = await pods.start("sleep", "1000")
    container.signal(signal.SIGTERM)
    result = await container.exec(["true"], timeout_s=LIMIT_S)
    assert result.code == 0
    container.kill()
    assert ((exit_ := await container.wait()).code, exit_.reason) == (137, "Error")


async def test_signals_after_the_end_are_harmless(pods: Pods) -> None:
    container = await pods.start("true")
    first = await container.wait()
    container.signal(signal.SIGTERM)
    container.kill()
    assert await container.wait() == first
    result = await container.exec(["true"], timeout_s=LIMIT_S)
    assert (result.code, result.output) == (128, "container main is not running")


async def test_killing_process_1_kills_all_others(pods: Pods) -> None:
    container = await pods.start("sh", "-c", "setsid sleep 1000 & sleep 1000 & echo ready; wait")
    await seen_in_log(pods, "ready")
    namespace = memory.pid_namespace(container.pid)
    assert len(living(namespace)) >= 3
    container.kill()
    await container.wait()
    assert living(namespace) == []


async def test_exec_runs_inside_with_environment_and_folder(pods: Pods) -> None:
    pods.pod["spec"]["volumes"] = [{"name": "work", "emptyDir": {}}]
    container = await pods.start(
        "sleep",
        "1000",
        workingDir="/srv/work",
        env=[{"name": "COLOUR", "value": "green"}],
        volumeMounts=[{"name": "work", "mountPath": "/srv/work"}],
    )
    script = "echo $COLOUR; pwd; hostname; from-image; cat /proc/1/comm; echo into the log >>/proc/1/fd/1"
    result = await container.exec(["sh", "-c", script], timeout_s=LIMIT_S)
    assert result.code == 0
    assert result.output.split("\n") == ["green", "/srv/work", "engine-0", "from the image", "sleep", ""]
    assert pods.log() == "into the log\n"


async def test_exec_reports_failure_missing_programs_and_bounds_output(pods: Pods) -> None:
    container = await pods.start("sleep", "1000")
    failed = await container.exec(["sh", "-c", "echo no >&2; exit 9"], timeout_s=LIMIT_S)
    assert (failed.code, failed.output) == (9, "no\n")
    missing = await container.exec(["no-such-program"], timeout_s=LIMIT_S)
    assert missing.code == 127
    assert missing.output == 'exec: "no-such-program": executable file not found in $PATH'
    long = await container.exec(["head", "-c", "100000", "/dev/zero"], timeout_s=LIMIT_S)
    assert (long.code, len(long.output)) == (0, 10 * 1024)


async def test_exec_is_killed_with_its_children_when_time_is_up(pods: Pods) -> None:
    container = await pods.start("sleep", "1000")
    result = await container.exec(["sh", "-c", "echo begun; sleep 1000 & wait"], timeout_s=1.0)
    assert (result.code, result.output) == (None, "begun\n")
    namespace = memory.pid_namespace(container.pid)
    await asyncio.to_thread(
        wait_until,
        lambda: living(namespace) == [container.pid],
        timeout_s=LIMIT_S,
        describe="only PID 1 is left",
    )


async def test_cancelled_exec_leaves_nothing(pods: Pods) -> None:
    container = await pods.start("sleep", "1000")
    namespace = memory.pid_namespace(container.pid)
    task = asyncio.create_task(container.exec(["sleep", "1000"], timeout_s=LIMIT_S))
    await asyncio.to_thread(wait_until, lambda: len(living(namespace)) == 2, timeout_s=LIMIT_S, describe="exec runs")
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await asyncio.to_thread(wait_until, lambda: len(living(namespace)) == 1, timeout_s=LIMIT_S, describe="exec is gone")


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("no-such", 'exec: "no-such": executable file not found in $PATH'),
        ("/usr/bin/no-such", 'exec: "/usr/bin/no-such": stat /usr/bin/no-such: no such file or directory'),
        ("/etc/passwd", 'exec: "/etc/passwd": permission denied'),
    ],
)
async def test_a_missing_program_is_a_failed_start(pods: Pods, command: str, sentence: str) -> None:
    with pytest.raises(StartFailed) as failure:
        await pods.start(command)
    assert failure.value.reason == "RunContainerError"
    assert failure.value.message == f"failed to start container main: {sentence}"
    assert pods.log() == ""


async def test_unknown_image_is_a_failed_pull(pods: Pods) -> None:
    with pytest.raises(StartFailed, match="not found") as failure:
        await pods.start("true", image="nobody/nothing:9")
    assert failure.value.reason == "ErrImagePull"


async def test_no_command_anywhere_is_a_failed_start(pods: Pods) -> None:
    with pytest.raises(StartFailed, match="no command specified"):
        await pods.start()


async def test_root_must_not_be_root_when_forbidden(pods: Pods) -> None:
    with pytest.raises(StartFailed, match="breaks non-root policy") as failure:
        await pods.start("true", securityContext={"runAsNonRoot": True, "runAsUser": 0})
    assert failure.value.reason == "CreateContainerConfigError"


async def test_another_user_has_its_number_and_its_files(pods: Pods) -> None:
    pods.pod["spec"]["volumes"] = [{"name": "work", "emptyDir": {}}]
    pods.pod["spec"]["securityContext"] = {"runAsUser": 1000, "runAsGroup": 1001}
    mounts = [{"name": "work", "mountPath": "/work"}]
    container = await pods.start(
        "sh", "-c", "id -u; id -g; echo x >/work/file; echo done; exec sleep 1000", volumeMounts=mounts
    )
    await seen_in_log(pods, "done")
    assert pods.log() == "1000\n1001\ndone\n"
    result = await container.exec(["sh", "-c", "id -u; cat /work/file; echo y >>/proc/1/fd/1"], timeout_s=LIMIT_S)
    assert (result.code, result.output) == (0, "1000\nx\n")


async def test_read_only_root_leaves_only_volumes_to_write(pods: Pods) -> None:
    pods.pod["spec"]["volumes"] = [{"name": "work", "emptyDir": {}}]
    script = "touch /x 2>/dev/null || echo root; touch /tmp/x 2>/dev/null || echo tmp; touch /work/x && echo work"
    text = await pods.output(
        *("sh", "-c", script),
        volumeMounts=[{"name": "work", "mountPath": "/work"}],
        securityContext={"readOnlyRootFilesystem": True},
    )
    assert text == "root\ntmp\nwork\n"


async def test_the_machine_stays_out_of_sight(pods: Pods, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_AGENT", "1")
    text = await pods.output(
        "sh", "-c", f"env; ls -d {Path.cwd()} {pods.root / 'agent'} /etc/shadow /home 2>/dev/null || :"
    )
    names = {line.partition("=")[0] for line in text.splitlines()}
    assert names == {
        *("HOME", "HOSTNAME", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KUBERNETES_SERVICE_PORT_HTTPS"),
        *("OF_IMAGE", "PATH", "PWD"),
    }


async def test_variables_are_not_in_any_command_line(pods: Pods) -> None:
    container = await pods.start("sleep", "1000", env=[{"name": "KEY", "value": "hf_very_secret"}])
    ps = ["ps", "ax", "-ww", "-o", "pid,args"]
    listing = await asyncio.to_thread(subprocess.check_output, ps, text=True)
    assert str(container.pid) in listing
    assert "hf_very_secret" not in listing


async def test_shared_memory_has_the_size_that_the_volume_says(pods: Pods) -> None:
    fill = "dd if=/dev/zero of=/dev/shm/x bs=1M count=4 2>&1 | grep -c 'No space left' || :; stat -c %s /dev/shm/x"
    pods.pod["spec"]["volumes"] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Mi"}}]
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    assert await pods.output("sh", "-c", fill, volumeMounts=mounts) == f"1\n{2 * 2**20}\n"


async def test_without_a_volume_shared_memory_is_as_small_as_in_life(pods: Pods) -> None:
    assert (await pods.output("df", "--output=size", "-B1", "/dev/shm")).split()[-1] == str(64 * 2**20)


async def test_empty_dir_is_shared_and_survives_a_restart(pods: Pods) -> None:
    pods.pod["spec"]["volumes"] = [{"name": "run", "emptyDir": {"medium": "Memory"}}]
    mounts = [{"name": "run", "mountPath": "/run/pool"}]
    await pods.output("sh", "-c", "echo one >>/run/pool/file", volumeMounts=mounts)
    reader = await pods.start("sh", "-c", WAIT_FOR_TERM, name="other", volumeMounts=mounts)
    await pods.output("sh", "-c", "echo two >>/run/pool/file; touch /only-here", volumeMounts=mounts)
    result = await reader.exec(["sh", "-c", "cat /run/pool/file; ls /only-here 2>&1"], timeout_s=LIMIT_S)
    assert result.output.startswith("one\ntwo\n")
    assert "No such file" in result.output


async def test_read_only_mounts_and_config_maps_cannot_be_written(pods: Pods) -> None:
    pods.objects.config_maps["scripts"] = {"run.sh": "echo mounted"}
    pods.pod["spec"]["volumes"] = [
        {"name": "scripts", "configMap": {"name": "scripts"}},
        {"name": "work", "emptyDir": {}},
    ]
    mounts = [
        {"name": "scripts", "mountPath": "/etc/scripts"},
        {"name": "scripts", "mountPath": "/single.sh", "subPath": "run.sh"},
        {"name": "work", "mountPath": "/work", "readOnly": True},
    ]
    write = "for f in /etc/scripts/x /work/x; do touch $f 2>/dev/null || echo no; done"
    script = f"sh /etc/scripts/run.sh; sh /single.sh; {write}"
    assert await pods.output("sh", "-c", script, volumeMounts=mounts) == "mounted\nmounted\nno\nno\n"


async def test_mounted_config_maps_are_refreshed_under_a_running_container(pods: Pods) -> None:
    pods.objects.config_maps["settings"] = {"level": "low", "old": "x"}
    pods.pod["spec"]["volumes"] = [{"name": "settings", "configMap": {"name": "settings"}}]
    container = await pods.start("sleep", "1000", volumeMounts=[{"name": "settings", "mountPath": "/settings"}])
    pods.objects.config_maps["settings"] = {"level": "high", "new": "y"}
    await pods.runtime.prepare(pods.pod, POD_IP)
    result = await container.exec(["sh", "-c", "cat /settings/level; echo; ls /settings"], timeout_s=LIMIT_S)
    assert result.output == "high\nlevel\nnew\n"


async def test_machine_and_faults_are_visible_and_faults_survive_a_restart(pods: Pods) -> None:
    container = await pods.start("sleep", "1000")
    faults_path(pods.root, pods.pod).write_text('{"hang": true}')
    await pods.runtime.prepare(pods.pod, POD_IP)
    result = await container.exec(["sh", "-c", "cat /run/sandbox/*; touch /run/sandbox/x"], timeout_s=LIMIT_S)
    assert '"hang": true' in result.output
    assert '"node": "n"' in result.output
    assert "Read-only file system" in result.output


async def test_a_gpu_out_of_memory_is_no_reason_of_the_kernels(pods: Pods) -> None:
    container = await pods.start("sleep", "1000")
    faults_path(pods.root, pods.pod).write_text('{"crash": "oom"}')
    container.kill()
    assert ((exit_ := await container.wait()).code, exit_.reason) == (137, "Error")


@pytest.mark.parametrize(
    ("script", "policy", "message"),
    [
        ("echo said >/dev/termination-log; exit 1", "File", "said\n"),
        ("echo logged; exit 1", "File", ""),
        ("echo logged; exit 1", "FallbackToLogsOnError", "logged\n"),
        ("echo logged; exit 0", "FallbackToLogsOnError", ""),
        ("echo logged; echo said >/dev/termination-log; exit 1", "FallbackToLogsOnError", "said\n"),
    ],
)
async def test_termination_message(pods: Pods, script: str, policy: str, message: str) -> None:
    container = await pods.start("sh", "-c", script, terminationMessagePolicy=policy)
    assert (await container.wait()).message == message


async def test_rights_follow_the_security_context(pods: Pods) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root has rights to give")
    script = "grep CapEff /proc/self/status | cut -f2"
    default = int(await pods.output("sh", "-c", script), 16)
    none = int(
        await pods.output("sh", "-c", script, securityContext={"capabilities": {"drop": ["ALL"], "add": ["SYS_NICE"]}}),
        16,
    )
    assert default >> 21 & 1 == 0, "CAP_SYS_ADMIN"
    assert default >> 1 & 1 == 1, "CAP_DAC_OVERRIDE"
    assert none == 1 << 23, "CAP_SYS_NICE alone"


async def test_unwritable_folder_fails_one_start_and_nothing_else(pods: Pods) -> None:
    running = await pods.start("sleep", "1000", name="other")
    broken = pods.runtime.log_path(pods.pod, "main").parent
    broken.write_text("in the way")
    with pytest.raises(StartFailed, match=r"main.*(File exists|Not a directory)") as failure:
        await pods.start("true")
    assert failure.value.reason == "CreateContainerError"
    assert (await running.exec(["true"], timeout_s=LIMIT_S)).code == 0


def test_missing_bubblewrap_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match="install the package bubblewrap"):
        Runtime(tmp_path, FakeObjects(), machine=lambda pod: {}, api_server="https://127.0.0.1:1")


async def test_remove_takes_the_pod_and_keeps_its_log(pods: Pods) -> None:
    await pods.output("echo", "hello")
    pods.runtime.remove(pods.pod)
    assert list((pods.root / "agent" / "pods").iterdir()) == []
    assert pods.log() == "hello\n"


AGENT = """
import asyncio, sys
from pathlib import Path
from sglpool.sandbox.images import Image
from sglpool.sandbox.nodeagent.runtime import Runtime

class Nothing: pass

async def main():
    root = Path(sys.argv[1])
    image = Image(name="tools:1", path=root)
    runtime = Runtime(root, Nothing(), machine=lambda pod: {}, api_server="https://127.0.0.1:1", images=lambda _: image)
    pod = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"nodeName": "n"}}
    await runtime.prepare(pod, "127.9.9.9")
    spec = {"name": "c", "image": "tools:1", "command": ["sh", "-c", "setsid sleep 1000 & sleep 1000"]}
    container = await runtime.start(pod, spec, attempt=0, pod_ip="127.9.9.9")
    print(container.pid, flush=True)
    await container.exec(["sh", "-c", "setsid sleep 1001 & sleep 1001"], timeout_s=1000)

asyncio.run(main())
"""


def test_nothing_outlives_a_killed_agent(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", AGENT, str(tmp_path)], stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        try:
            pid = int(agent.stdout.readline())
            namespace = memory.pid_namespace(pid)
            # Three of the container, three of the exec.
            wait_until(
                lambda: len(living(namespace)) == 6,
                timeout_s=LIMIT_S,
                describe=lambda: f"members {living(namespace)}",
            )
            children = children_of(agent.pid)
            assert len(children) == 2
        finally:
            agent.kill()
        agent.wait(LIMIT_S)
    wait_until(
        lambda: not living(namespace) and not any(Path(f"/proc/{child}").exists() for child in children),
        timeout_s=LIMIT_S,
        describe=lambda: f"left: {living(namespace)} {children}",
    )


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found
