"""Pods that are stopped at a bad moment, and what their logs show."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from sandbox.cluster.conftest import AgentCluster, PodRunner
from sandbox.cluster.engines import Json, processes_of
from support.pool_on_cluster import NodeMaker, PoolMaker
from support.waiting import wait_until

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(300)]

GRACE_S = 155
"""Of the rendered pods; nothing here may take so long."""


@pytest.fixture
def slow_node(cluster: AgentCluster, add_nodes: NodeMaker) -> Json:
    """The template of pods on a node that runs as slowly as life, so that a load takes minutes."""
    template = add_nodes("b200-7", place="slow")
    speeds = [f"sandbox.sglpool.io/{name}=1" for name in ("speed", "start-speed")]
    cluster.kubectl("annotate", "node", "b200-7", *speeds, "--overwrite")
    return template


def test_a_pod_deleted_while_it_loads_is_gone_at_once(
    cluster: AgentCluster, slow_node: Json, make_pool: PoolMaker
) -> None:
    pool = make_pool(replicas=1, template=slow_node)
    logs = ["logs", "p-b200-0", "-n", pool.namespace]
    wait_until(
        lambda: "Init torch distributed begin" in cluster.sglpool(*logs).stdout,
        timeout_s=60,
        describe="the engine loads",
    )
    pod = pool.pods()["p-b200-0"]
    assert pod["spec"]["nodeName"] == "b200-7"
    assert pod["spec"]["terminationGracePeriodSeconds"] == GRACE_S
    began = time.monotonic()
    cluster.kubectl("delete", "pod", "p-b200-0", "-n", pool.namespace, "--timeout=60s", timeout_s=70)
    assert time.monotonic() - began < 30
    log = next(
        (cluster.sandbox.folder / "agent/logs").glob(f"{pool.namespace}_p-b200-0_{pod['metadata']['uid']}/*/*.log")
    )
    text = log.with_name("0.log").read_text()
    assert "SIGTERM before the server was warm: killing it at once." in text


def test_a_followed_log_comes_as_it_is_written_and_ends_with_its_container(
    cluster: AgentCluster, run_pod: PodRunner
) -> None:
    pod = run_pod(
        "echo one; until test -f /tmp/go; do sleep 0.1; done; echo two; exit 3", pod={"restartPolicy": "Never"}
    )
    pod.wait_for("it runs", lambda: pod.container().get("started"))
    where = ["-n", pod.namespace]
    commands = {
        "sglpool": [
            *(sys.executable, "-m", "sglpool", "sandbox", "logs", "p", "-f", *where),
            *("--dir", str(cluster.sandbox.folder)),
        ],
        "kubectl": [
            *(str(cluster.kubectl.binary), "--kubeconfig", str(cluster.kubectl.kubeconfig)),
            *("logs", "-f", "p", *where),
        ],
    }
    followers = {
        name: subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for name, command in commands.items()
    }
    try:
        for follower in followers.values():
            assert follower.stdout
            assert follower.stdout.readline() == "one\n"
        (shell, *_) = [p for p in processes_of(pod.namespace, "p") if "sh" in (p.info["cmdline"] or [])]
        subprocess.run(["nsenter", f"--target={shell.pid}", "--mount", "touch", "/tmp/go"], check=True, timeout=10)
        for name, follower in followers.items():
            rest, _ = follower.communicate(timeout=30)
            assert (name, rest, follower.returncode) == (name, "two\n", 0)
    finally:
        for follower in followers.values():
            follower.kill()
            follower.communicate()
    assert pod.logs("--tail=1") == "two\n"
    assert "no log of container nobody" in cluster.sglpool("logs", "p", "-c", "nobody", *where).stderr
