"""What users and machines get wrong ends in one sentence where people look for it, and nothing else is harmed."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.cluster.conftest import AgentCluster, PodOnNode, PodRunner
from sandbox.cluster.engines import READY_S, Json, get
from sglpool.sandbox.images.hub import repository
from sglpool.sandbox.nodeagent.files import Folders
from support.pool_on_cluster import ClusterPool, NodeMaker, PoolMaker, is_ready
from support.waiting import wait_until

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(300)]

ENGINE_IMAGE = "lmsysorg/sglang:v0.5.23"
MODEL = "/models/m"
GPU_POD: Json = {
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    "restartPolicy": "Never",
    "volumes": [{"name": "model", "configMap": {"name": "model"}}],
}


@pytest.fixture
def witness(shared_pool: ClusterPool) -> Iterator[None]:
    """Pods of another pool, which must not notice anything."""
    before = shared_pool.uids()
    restarts = {name: pod["status"]["containerStatuses"][0]["restartCount"] for name, pod in shared_pool.pods().items()}
    yield
    after = shared_pool.pods()
    assert {name: pod["metadata"]["uid"] for name, pod in after.items()} == before
    for name, pod in after.items():
        assert is_ready(pod)
        assert pod["status"]["containerStatuses"][0]["restartCount"] == restarts[name]


@pytest.fixture
def model(cluster: AgentCluster, namespace: str, tmp_path: Path) -> None:
    """A ConfigMap with what the sandbox's hub has of a model: its configuration and files that stand for weights."""
    for name, content in repository("openai/gpt-oss-120b", None).items():
        (tmp_path / name).write_bytes(content)
    cluster.kubectl("create", "configmap", "model", f"--from-file={tmp_path}", "-n", namespace)


def engine(name: str, *arguments: str) -> Json:
    """A container of a pod made by hand that serves that model."""
    return {
        "name": name,
        "image": ENGINE_IMAGE,
        "command": ["sglang", "serve", "--model-path", MODEL, "--host", "$(IP)", "--port", "30000"],
        "args": list(arguments),
        "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
        "volumeMounts": [{"name": "model", "mountPath": MODEL}],
    }


def ended(pod: PodOnNode, container: str) -> Json:
    """How a container ended, once it has."""

    def look() -> Json:
        statuses = pod.get()["status"].get("containerStatuses") or []
        found = next((status for status in statuses if status["name"] == container), {})
        terminated: Json = found.get("state", {}).get("terminated") or {}
        return terminated

    pod.wait_for(f"container {container} has ended", look)
    return look()


@pytest.mark.usefixtures("witness", "model")
def test_a_flag_that_no_engine_knows_ends_it_with_its_usage(run_pod: PodRunner) -> None:
    pod = run_pod("", pod=GPU_POD | {"containers": [engine("main", "--no-such-flag")]})
    assert ended(pod, "main")["exitCode"] == 2
    lines = pod.logs().splitlines()
    assert lines[0].startswith("usage: ")
    assert lines[-1].endswith("error: unrecognized arguments: --no-such-flag")


@pytest.mark.usefixtures("witness", "model")
def test_a_port_in_use_ends_the_second_engine_and_leaves_the_first(run_pod: PodRunner) -> None:
    first, second = engine("first"), engine("second")
    listens = "python3 -c 'import os, socket; socket.create_connection((os.environ[\"IP\"], 30000))' 2>/dev/null"
    second["command"] = ["sh", "-c", f'while ! {listens}; do sleep 0.1; done; exec "$@"', "sh", *second["command"]]
    pod = run_pod("", pod=GPU_POD | {"containers": [first, second]})
    assert ended(pod, "second")["exitCode"] == 1
    address = pod.get()["status"]["podIP"]
    last_line = pod.logs("-c", "second").splitlines()[-1]
    assert last_line == f"sglpool: cannot listen on {address}:30000: Address already in use."
    assert "Traceback" not in pod.logs("-c", "second")
    assert get(pod.get(), "/ready")[0] == 200
    assert pod.phase == "Running"


@pytest.mark.usefixtures("witness")
@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["no-such-program"], 'exec: "no-such-program": executable file not found in $PATH'),
        (["/no/such/program"], 'exec: "/no/such/program": stat /no/such/program: no such file or directory'),
    ],
)
def test_a_program_that_the_image_lacks_is_named(run_pod: PodRunner, command: list[str], sentence: str) -> None:
    pod = run_pod("", pod={"containers": [{"name": "main", "image": "busybox", "command": command}]})
    pod.wait_for("its start has failed", lambda: pod.container().get("lastState", {}).get("terminated"))
    last = pod.container()["lastState"]["terminated"]
    assert (last["exitCode"], last["reason"]) == (128, "StartError")
    assert last["message"].endswith(sentence)


@pytest.fixture
def small_disk(cluster: AgentCluster, add_nodes: NodeMaker) -> Iterator[tuple[Path, Json]]:
    """A disk that has room for next to nothing, and the template of pods on its node."""
    template = add_nodes("b200-6", place="small-disk")
    root = Folders(cluster.sandbox.folder).node_root("b200-6")
    root.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(root)], check=True, timeout=10)
    yield root, template
    # Containers that are still ending have a copy of the mount.
    subprocess.run(["umount", "--lazy", str(root)], check=True, timeout=10)


def remount(disk: Path, options: str) -> bool:
    command = ["mount", "-o", f"remount,{options}", str(disk)]
    return subprocess.run(command, capture_output=True, timeout=10, check=False).returncode == 0


def last_words(pool: ClusterPool) -> str:
    """What the download of the pool's first replica said when it ended last."""
    statuses = pool.pods().get("p-b200-0", {"status": {}})["status"].get("initContainerStatuses") or [{}]
    ends = [statuses[0].get(key, {}).get("terminated") or {} for key in ("state", "lastState")]
    return " ".join(end["message"] for end in ends if end.get("exitCode") == 1)


@pytest.mark.usefixtures("witness")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
def test_a_disk_that_is_full_or_cannot_be_written_is_named(
    cluster: AgentCluster, small_disk: tuple[Path, Json], make_pool: PoolMaker
) -> None:
    disk, template = small_disk
    filler = disk / "filler"
    filler.write_bytes(bytes(60 * 1024))
    pool = make_pool(replicas=1, template=template)
    wait_until(lambda: last_words(pool), timeout_s=40, describe=lambda: f"the download failed: {pool.pods()}")
    said = last_words(pool)
    assert re.fullmatch(
        r"sglpool: the disk of /var/lib/sglpool/models/openai/gpt-oss-120b/\w+ lacks \d+ bytes: \d+ bytes of "
        r"openai/gpt-oss-120b are still to download, \d+ are free. Free space there, or use a larger disk.\n",
        said,
    )
    # Busy for as long as a try of the download holds its lock.
    wait_until(lambda: remount(disk, "ro"), timeout_s=30, describe="the disk is read-only")
    cluster.kubectl("delete", "pod", "p-b200-0", "-n", pool.namespace, timeout_s=90)
    wait_until(
        lambda: "Read-only file system" in last_words(pool),
        timeout_s=40,
        describe=lambda: f"the next download failed too: {pool.pods()}",
    )
    assert last_words(pool).startswith("sglpool: cannot provide the weights: Read-only file system (/var/lib/sglpool/")
    assert remount(disk, "rw,size=16m")
    filler.unlink()
    cluster.kubectl("delete", "pod", "p-b200-0", "-n", pool.namespace, timeout_s=90)
    pool.wait_ready(READY_S)
