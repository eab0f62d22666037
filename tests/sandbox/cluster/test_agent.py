"""The node agent ends, in whatever way: nothing outlives it, and everything comes back with the next one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sandbox.cluster.conftest import AgentCluster, start_cluster
from sandbox.cluster.engines import READY_S, get, processes_of, say
from support.pool_on_cluster import ClusterPool
from support.waiting import wait_until

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(300)]


def agent_pid(cluster: AgentCluster) -> int:
    return cluster.sandbox.status().processes["node-agent"]


def kill(cluster: AgentCluster) -> None:
    os.kill(agent_pid(cluster), signal.SIGKILL)


def terminate(cluster: AgentCluster) -> None:
    os.kill(agent_pid(cluster), signal.SIGTERM)


def test_pods_end_with_the_agent_and_come_back_with_the_next(cluster: AgentCluster, shared_pool: ClusterPool) -> None:
    before = counts(shared_pool)
    assert list(processes_of(shared_pool.namespace))
    for number, end in enumerate((kill, terminate), start=1):
        end(cluster)
        wait_until(
            lambda: not agent_pid(cluster) and not list(processes_of(shared_pool.namespace)),
            timeout_s=15,
            describe="every process of every pod is gone",
        )
        assert "starting node-agent" in cluster.told("restart")
        wait_until(
            lambda number=number: counts(shared_pool) == {name: count + number for name, count in before.items()},  # type: ignore[misc]
            timeout_s=30,
            describe=lambda: f"every container counts a restart: {shared_pool.pods()}",
        )
        for pod in shared_pool.pods().values():
            last = pod["status"]["containerStatuses"][0]["lastState"]["terminated"]
            assert (last["exitCode"], last["reason"]) == (255, "Unknown")
    wait_until(
        lambda: all(answers(pod) for pod in shared_pool.pods().values()),
        timeout_s=READY_S,
        describe="both replicas serve under their new addresses",
    )
    shared_pool.wait_ready(READY_S)
    assert "every process runs" in cluster.told("restart"), "nothing is left to start"


def counts(pool: ClusterPool) -> dict[str, int]:
    """How often the engine of each pod was restarted."""
    return {name: pod["status"]["containerStatuses"][0]["restartCount"] for name, pod in pool.pods().items()}


def answers(pod: dict[str, Any]) -> bool:
    try:
        return get(pod, "/ready")[0] == 200 and say(pod, "hello").completion_tokens > 0
    except OSError:
        return False


def test_the_operator_starts_again_too(cluster: AgentCluster, shared_pool: ClusterPool) -> None:
    before = cluster.sandbox.status().processes
    os.kill(before["operator"], signal.SIGKILL)
    status = cluster.sglpool("status")
    assert (status.returncode, "operator ended" in " ".join(status.stdout.split())) == (1, True)
    assert "starting operator" in cluster.told("restart")
    after = cluster.sandbox.status().processes
    assert after["operator"] not in (0, before["operator"])
    assert after["node-agent"] == before["node-agent"], "what runs is left alone"
    shared_pool.apply(replicas=3)
    wait_until(lambda: len(shared_pool.pods()) == 3, timeout_s=60, describe="the new operator adds a replica")
    # Until its launcher listens to signals, it would be deaf to the one that ends it, as every PID 1.
    logs = ["logs", "shared-b200-2", "-n", shared_pool.namespace]
    wait_until(lambda: "started sglang" in cluster.sglpool(*logs).stdout, timeout_s=60, describe="its launcher runs")
    shared_pool.apply(replicas=2)
    wait_until(lambda: len(shared_pool.pods()) == 2, timeout_s=60, describe=lambda: f"it is gone: {shared_pool.pods()}")
    shared_pool.wait_ready(READY_S)
    assert "there is no process nonsense in the sandbox" in cluster.sglpool("restart", "nonsense").stderr


@pytest.mark.parametrize("agent_first", [False, True], ids=["while-all-runs", "after-the-agent-was-killed"])
def test_down_leaves_no_process_and_no_file(tmp_path: Path, agent_first: bool) -> None:
    cluster = start_cluster(tmp_path / "sandbox", {"B200": 1, "CPU": 0}, operator=False)
    try:
        name = cluster.namespace()
        pod: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "stubborn"},
            "spec": {
                "tolerations": [{"operator": "Exists"}],
                "terminationGracePeriodSeconds": 600,
                "containers": [
                    {
                        "name": "main",
                        "image": "busybox",
                        # Deaf to SIGTERM, with a process that has left its session.
                        "command": ["sh", "-c", "trap '' TERM; setsid sleep 601 & sleep 600 & wait; wait"],
                    }
                ],
            },
        }
        cluster.kubectl("create", "-n", name, "-f", "-", input=json.dumps(pod))
        wait_until(
            lambda: sum("sleep" in (process.info["cmdline"] or []) for process in processes_of(name)) == 2,
            timeout_s=30,
            describe="it runs",
        )
        if agent_first:
            # Everything at once, as when this machine loses power, and all of it back.
            for pid in cluster.sandbox.status().processes.values():
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not list(processes_of(name)), timeout_s=10, describe="its processes are gone")
            assert "every process runs" in cluster.told("restart")

            def restarted() -> bool:
                status = cluster.kubectl.json("get", "pod", "stubborn", "-n", name)["status"]
                return bool(status["containerStatuses"][0]["restartCount"] == 1)

            wait_until(restarted, timeout_s=30, describe="it runs again")
            kill(cluster)
    finally:
        done = subprocess.run(
            [sys.executable, "-m", "sglpool", "sandbox", "down", "--dir", str(cluster.sandbox.folder)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert not list(processes_of(name))
    assert processes_below(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


def processes_below(folder: Path) -> list[str]:
    """Command lines that name something in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(folder) in (line := (entry / "cmdline").read_text()):
                found.append(line.replace("\0", " "))
        except OSError:
            continue
    return found
