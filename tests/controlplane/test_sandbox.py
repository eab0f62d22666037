"""The sandbox itself: a real control plane, fake nodes that behave, and nothing left afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglpool.sandbox import versions
from sglpool.sandbox.cluster import Sandbox
from sglpool.sandbox.controlplane import EVICTION_S, NODE_GRACE_S
from sglpool.sandbox.errors import SandboxError
from sglpool.sandbox.nodes import add_node, cordon_node, delete_node, node_states, start_node, stop_node
from support.kubectl import Kubectl
from support.waiting import wait_until

pytestmark = pytest.mark.controlplane

TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def processes_of(folder: Path) -> list[str]:
    """The command lines that mention a folder, of every process on the machine."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if entry.name.isdigit() and int(entry.name) != os.getpid() and str(folder) in command:
            found.append(command)
    return found


def pod(name: str, *, image: str = "engine:1", gpus: int = 0, **metadata: dict[str, str]) -> dict[str, Any]:
    """A pod of the engine's shape: an init container and a container named `engine`."""
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": {
            "tolerations": [TOLERATION],
            "initContainers": [{"name": "weights", "image": "weights:1"}],
            "containers": [{"name": "engine", "image": image, "resources": resources}],
        },
    }


class Pods:
    """Creates pods in the test's namespace of the module's sandbox and reads their status."""

    def __init__(self, sandbox: Sandbox, namespace: str) -> None:
        self.api = sandbox.api
        self.path = f"/api/v1/namespaces/{namespace}/pods"

    def create(self, manifest: dict[str, Any]) -> None:
        self.api.create(self.path, manifest)

    def get(self, name: str) -> dict[str, Any]:
        return self.api.get(f"{self.path}/{name}")

    def all(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.api.get(self.path)["items"]
        return items

    def engine(self, name: str) -> dict[str, Any]:
        statuses = self.get(name)["status"].get("containerStatuses", [{}])
        status: dict[str, Any] = statuses[0]
        return status

    def waiting_reason(self, name: str) -> str:
        return str(self.engine(name).get("state", {}).get("waiting", {}).get("reason", ""))


def ready(manifest: dict[str, Any]) -> bool:
    conditions = manifest["status"].get("conditions", [])
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A sandbox of this module's own: its nodes may be lost."""
    sandbox = Sandbox(tmp_path_factory.mktemp("sandbox") / "three-nodes")
    sandbox.up({"B200": 3})
    yield sandbox
    sandbox.down()


@pytest.fixture
def pods(sandbox: Sandbox, request: pytest.FixtureRequest) -> Iterator[Pods]:
    kubectl = Kubectl(binary=sandbox.kubectl, kubeconfig=sandbox.kubeconfig)
    name = request.node.name.replace("_", "-").split("[")[0][:60].rstrip("-")
    kubectl.create_namespace(name)
    pods = Pods(sandbox, name)
    yield pods
    # Pods first: the namespace controller itself waits five seconds before it begins.
    kubectl("delete", "statefulsets", "--all", "--cascade=orphan", "-n", name)
    kubectl("delete", "pods", "--all", "--force", "--grace-period=0", "-n", name)
    kubectl("delete", "namespace", name, "--wait=false")


def test_the_versions_are_the_pinned_ones_and_the_server_agrees(sandbox: Sandbox) -> None:
    status = sandbox.status()
    assert status.running
    assert sandbox.api.get("/version")["gitVersion"] == f"v{versions.KUBERNETES}"
    assert status.versions["etcd"] == f"v{versions.ETCD}"
    assert status.versions["kwok"] == f"v{versions.KWOK}"
    assert status.versions["kubectl"].startswith("v1.37.")


def test_nodes_look_like_eight_gpu_machines(sandbox: Sandbox) -> None:
    node = sandbox.api.get("/api/v1/nodes/b200-1")
    assert node["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-B200"
    assert node["metadata"]["labels"]["nvidia.com/gpu.count"] == "8"
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert node["status"]["allocatable"]["memory"] == "2Ti"
    assert node["spec"]["taints"] == [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
    assert [state.name for state in node_states(sandbox.api)] == ["b200-0", "b200-1", "b200-2", "cpu-0"]


def test_seven_four_gpu_pods_pack_two_on_a_node_and_the_seventh_waits(sandbox: Sandbox, pods: Pods) -> None:
    namespace = pods.path.split("/")[4]
    template = pod("unused", gpus=4)
    sandbox.api.create(
        f"/apis/apps/v1/namespaces/{namespace}/statefulsets",
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "engine"},
            "spec": {
                "replicas": 7,
                "podManagementPolicy": "Parallel",
                "serviceName": "engine",
                "selector": {"matchLabels": {"app": "engine"}},
                "template": {"metadata": {"labels": {"app": "engine"}}, "spec": template["spec"]},
            },
        },
    )
    wait_until(lambda: sum(map(ready, pods.all())) == 6, timeout_s=30, describe="six pods are Ready")
    nodes = [item["spec"].get("nodeName", "") for item in pods.all()]
    assert sorted(nodes) == ["", "b200-0", "b200-0", "b200-1", "b200-1", "b200-2", "b200-2"]
    (unplaced,) = [item for item in pods.all() if not item["spec"].get("nodeName")]
    assert unplaced["status"]["phase"] == "Pending"
    (condition,) = unplaced["status"]["conditions"]
    assert condition["reason"] == "Unschedulable"
    assert "Insufficient nvidia.com/gpu" in condition["message"]
    assert {state.gpus_requested for state in node_states(sandbox.api) if state.gpus} == {8}


def test_a_healthy_pod_runs_before_it_is_ready_and_has_an_address_of_its_node(pods: Pods) -> None:
    pods.create(pod("healthy", gpus=8, annotations={"sandbox.sglpool.io/load-delay": "1s"}))
    wait_until(lambda: pods.engine("healthy").get("state", {}).get("running"), timeout_s=20, describe="it runs")
    assert not ready(pods.get("healthy"))
    wait_until(lambda: ready(pods.get("healthy")), timeout_s=20, describe="it is Ready")
    manifest = pods.get("healthy")
    node = pods.api.get(f"/api/v1/nodes/{manifest['spec']['nodeName']}")
    assert manifest["status"]["podIP"].rsplit(".", 1)[0] + ".0/24" == node["spec"]["podCIDR"]
    (weights,) = manifest["status"]["initContainerStatuses"]
    assert weights["state"]["terminated"]["exitCode"] == 0
    engine = pods.engine("healthy")
    assert (engine["ready"], engine["started"], engine["restartCount"]) == (True, True, 0)
    assert engine["imageID"]


def test_a_missing_image_backs_off_and_never_runs(pods: Pods) -> None:
    pods.create(pod("broken", image="registry.example/does-not-exist:1"))
    seen: set[str] = set()

    def backs_off() -> bool:
        seen.add(pods.waiting_reason("broken"))
        return "ImagePullBackOff" in seen

    wait_until(backs_off, timeout_s=20, describe=lambda: f"ImagePullBackOff; seen: {seen}")
    assert "ErrImagePull" in seen
    assert pods.get("broken")["status"]["phase"] == "Pending"
    assert "does-not-exist" in pods.engine("broken")["state"]["waiting"]["message"]


def test_a_crash_loop_counts_its_restarts(pods: Pods) -> None:
    pods.create(pod("crashing", image="crash-loop:1"))
    wait_until(
        lambda: pods.waiting_reason("crashing") == "CrashLoopBackOff" and pods.engine("crashing")["restartCount"] >= 3,
        timeout_s=40,
        describe=lambda: f"three restarts; now {pods.engine('crashing')}",
    )
    last = pods.engine("crashing")["lastState"]["terminated"]
    assert (last["exitCode"], last["reason"]) == (1, "Error")
    assert not ready(pods.get("crashing"))


def test_a_pod_can_be_kept_from_ready_and_let_go(pods: Pods) -> None:
    quick = {"sandbox.sglpool.io/load-delay": "0s"}
    pods.create(pod("control", annotations=quick))
    pods.create(pod("never", annotations=quick, labels={"sandbox.sglpool.io/never-ready": "true"}))
    wait_until(lambda: pods.engine("never").get("state", {}).get("running"), timeout_s=20, describe="it runs")
    wait_until(lambda: ready(pods.get("control")), timeout_s=20, describe="the other pod is Ready")
    assert not ready(pods.get("never"))
    pods.api.patch(f"{pods.path}/never", {"metadata": {"labels": {"sandbox.sglpool.io/never-ready": None}}})
    wait_until(lambda: ready(pods.get("never")), timeout_s=20, describe="it is Ready")
    pods.api.patch(f"{pods.path}/never", {"metadata": {"labels": {"sandbox.sglpool.io/never-ready": "true"}}})
    wait_until(lambda: not ready(pods.get("never")), timeout_s=20, describe="it is unready again")


def test_a_deleted_pod_terminates_for_its_stop_delay(pods: Pods) -> None:
    pods.create(pod("slow", annotations={"sandbox.sglpool.io/stop-delay": "2s"}))
    wait_until(lambda: pods.get("slow")["status"]["phase"] == "Running", timeout_s=20, describe="it runs")
    pods.api.delete(f"{pods.path}/slow")
    assert pods.get("slow")["metadata"]["deletionTimestamp"]
    wait_until(lambda: not pods.all(), timeout_s=20, describe="it is gone")


def test_a_job_completes(pods: Pods) -> None:
    manifest = pod("job", labels={"sandbox.sglpool.io/complete": "true"})
    manifest["spec"]["restartPolicy"] = "Never"
    pods.create(manifest)
    wait_until(lambda: pods.get("job")["status"]["phase"] == "Succeeded", timeout_s=20, describe="it succeeds")
    assert pods.engine("job")["state"]["terminated"]["exitCode"] == 0


def test_nodes_can_be_added_cordoned_and_removed(sandbox: Sandbox) -> None:
    add_node(sandbox.api, "b300-0")

    def state() -> Any:
        return next((node for node in node_states(sandbox.api) if node.name == "b300-0"), None)

    wait_until(lambda: state().ready and state().schedulable, timeout_s=20, describe="b300-0 is usable")
    assert state().product == "NVIDIA-B300-SXM6-AC"
    cordon_node(sandbox.api, "b300-0")
    assert state().ready
    assert not state().schedulable
    cordon_node(sandbox.api, "b300-0", unschedulable=False)
    wait_until(lambda: state().schedulable, timeout_s=20, describe="b300-0 is usable again")
    delete_node(sandbox.api, "b300-0")
    assert state() is None


def test_a_lost_node_turns_not_ready_its_pod_hangs_and_it_can_come_back(sandbox: Sandbox, pods: Pods) -> None:
    pods.create(pod("victim", gpus=8))
    wait_until(lambda: ready(pods.get("victim")), timeout_s=20, describe="the pod is Ready")
    node = pods.get("victim")["spec"]["nodeName"]

    def node_ready() -> bool:
        return next(state.ready for state in node_states(sandbox.api) if state.name == node)

    stop_node(sandbox.api, node)
    wait_until(lambda: not node_ready(), timeout_s=NODE_GRACE_S + 15, describe=f"{node} is NotReady")
    wait_until(lambda: not ready(pods.get("victim")), timeout_s=15, describe="its pod is not Ready")
    wait_until(
        lambda: "deletionTimestamp" in pods.get("victim")["metadata"],
        timeout_s=EVICTION_S + 15,
        describe="its pod is evicted",
    )
    start_node(sandbox.api, node)
    wait_until(node_ready, timeout_s=40, describe=f"{node} is Ready again")
    wait_until(lambda: not pods.all(), timeout_s=20, describe="the evicted pod ends now")


def test_a_second_sandbox_runs_beside_the_first_and_leaves_nothing(sandbox: Sandbox, tmp_path: Path) -> None:
    second = Sandbox(tmp_path / "second")
    second.up({"H200": 1})
    try:
        assert second.api.address != sandbox.api.address
        assert [node.name for node in node_states(second.api)] == ["cpu-0", "h200-0"]
        assert len(processes_of(second.folder)) == 5
        with pytest.raises(SandboxError, match=r"there is a sandbox in .* already"):
            Sandbox(second.folder).up({})
    finally:
        second.down()
    assert processes_of(second.folder) == []
    assert not second.folder.exists()
    assert sandbox.status().running
    second.down()  # once more is fine


def test_down_keeps_a_folder_and_files_that_are_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    sandbox = Sandbox(tmp_path)
    sandbox.up({})
    sandbox.down()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert processes_of(tmp_path) == []


@pytest.mark.parametrize(
    ("stage", "number"), [("etcd", signal.SIGINT), ("node-agent", signal.SIGINT), ("kube-apiserver", signal.SIGTERM)]
)
def test_an_interrupt_during_up_leaves_no_process_and_no_file(
    tmp_path: Path, stage: str, number: signal.Signals
) -> None:
    folder = tmp_path / "interrupted"
    command = [sys.executable, "-m", "sglpool.sandbox.commands", "up", "--dir", str(folder)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as up:
        wait_until(
            lambda: (folder / "run" / f"{stage}.pid").exists() or up.poll() is not None,
            timeout_s=60,
            describe=f"{stage} is started",
            interval_s=0.01,
        )
        up.send_signal(number)
        _, said = up.communicate(timeout=60)
    assert up.returncode == 130, said
    assert "nothing is left running" in said
    assert processes_of(folder) == []
    assert not folder.exists()


def test_the_command_line_goes_from_up_to_down(tmp_path: Path) -> None:
    folder = tmp_path / "by hand"

    def sglpool(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sglpool.sandbox.commands", *arguments, "--dir", str(folder)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    up = sglpool("up", "--nodes", "b300=1,CPU=0")
    try:
        assert up.returncode == 0, up.stderr
        assert f"export KUBECONFIG='{folder}/kubeconfig'" in up.stdout
        assert "NVIDIA-B300-SXM6-AC" in sglpool("nodes").stdout
        assert sglpool("status").returncode == 0
        script = f"{sglpool('env').stdout}\nkubectl get nodes -o name"
        shell = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, check=False)
        assert shell.stdout == "node/b300-0\n"
        assert "there is a sandbox" in sglpool("up").stderr
    finally:
        down = sglpool("down")
    assert down.returncode == 0, down.stderr
    assert processes_of(folder) == []
    missing = sglpool("status")
    assert (missing.returncode, "start one with" in missing.stderr) == (1, True)


def test_a_wrong_node_list_is_refused_before_anything_starts(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sglpool.sandbox.commands", "up", "--nodes", "B100=2", "--dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "'B100=2' is not TYPE=COUNT with a type of B200, B300, H200, CPU" in " ".join(done.stderr.split())
    assert list(tmp_path.iterdir()) == []
