"""A cluster whose pods are processes: a sandbox with the node agent and the operator, for the session."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from sandbox.cluster.engines import READY_S, Json
from sglpool.sandbox.cluster import Sandbox
from sglpool.sandbox.nodes import START_SPEED_ANNOTATION
from support.kubectl import Kubectl
from support.pool_on_cluster import ClusterPool, NodeMaker, PoolMaker, small_pool
from support.waiting import wait_until

SPEED, START_SPEED = 60.0, 400.0
"""On nodes that a test adds, starts are nothing to wait for; on the shared ones faults show in them."""
WARM_UP: Json = {"warmup": {"promptTokens": 2000}}
# What these tests are about are engines.
NO_ROUTER: Json = {"enabled": False}


@dataclass(frozen=True)
class AgentCluster:
    """The sandbox, and kubectl for it."""

    sandbox: Sandbox
    kubectl: Kubectl

    def sglpool(self, *arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """`sglpool sandbox` as a user runs it, for this sandbox."""
        command = [sys.executable, "-m", "sglpool", "sandbox", *arguments, "--dir", str(self.sandbox.folder)]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)

    def told(self, *arguments: str) -> str:
        """The same for what must succeed; returns what it printed."""
        done = self.sglpool(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def replace_operator(self) -> None:
        """End the operator as a lost node would, and start the next one."""
        os.kill(self.sandbox.status().processes["operator"], signal.SIGKILL)
        self.told("restart", "operator")

    def empty(self, namespace: str) -> None:
        """Have everything of a namespace gone, so that its GPUs are free."""
        kubectl = self.kubectl
        kubectl("delete", "sglpool", "--all", "-n", namespace, "--wait=false")
        kubectl("delete", "statefulsets,deployments,jobs", "--all", "-n", namespace, "--wait=false")
        kubectl("delete", "pods", "--all", "-n", namespace, "--force", "--grace-period=0", timeout_s=90)
        kubectl("delete", "namespace", namespace, "--wait=false")

    def namespace(self) -> str:
        name = f"test-{uuid.uuid4().hex[:10]}"
        self.kubectl.create_namespace(name)
        return name


def start_cluster(folder: Any, nodes: dict[str, int], *, operator: bool = True) -> AgentCluster:
    sandbox = Sandbox(folder)
    sandbox.up(nodes, speed=SPEED, operator=operator)
    return AgentCluster(sandbox, Kubectl(binary=sandbox.kubectl, kubeconfig=sandbox.kubeconfig))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentCluster]:
    """Two nodes of eight B200s and one without GPUs. Tests that stop a node start it again."""
    cluster = start_cluster(tmp_path_factory.mktemp("agent") / "sandbox", {"B200": 2})
    yield cluster
    cluster.sandbox.down()


@pytest.fixture
def namespace(cluster: AgentCluster) -> Iterator[str]:
    """A namespace of the test's own; what it holds is gone when the test has ended, so that GPUs are free."""
    name = cluster.namespace()
    yield name
    cluster.empty(name)


@pytest.fixture(scope="session")
def pools(cluster: AgentCluster) -> Iterator[dict[str, ClusterPool]]:
    """Two pools for the session, begun together and perhaps not Ready yet; tests leave them as they were."""
    namespace = cluster.namespace()
    speculative: Json = {
        "model": {
            "name": "deepseek-v3.2",
            "profile": "deepseek-v3.2-nvfp4",
            "source": {"huggingFace": {"repo": "nvidia/DeepSeek-V3.2-NVFP4", "revision": "0" * 40}},
        },
        "kvCache": {},
        "tensorParallelSize": 4,
        "speculative": {"algorithm": "NEXTN"},
        "engine": WARM_UP | {"maxRunningRequests": 1, "maxQueuedRequests": 1},
    }
    specs: dict[str, Json] = {"shared": {"replicas": 2, "engine": WARM_UP}, "speculative": speculative}
    made = {
        name: ClusterPool(cluster.kubectl, namespace, small_pool(name, router=NO_ROUTER, **spec))
        for name, spec in specs.items()
    }
    for pool in made.values():
        pool.apply()
    yield made
    cluster.empty(namespace)


@pytest.fixture
def shared_pool(pools: dict[str, ClusterPool]) -> ClusterPool:
    """Two Ready replicas that all tests share: `shared-b200-0` and `shared-b200-1`."""
    pools["shared"].wait_ready(READY_S)
    return pools["shared"]


@pytest.fixture
def speculative_pool(pools: dict[str, ClusterPool]) -> ClusterPool:
    """One Ready replica that runs one request and queues one, with speculative decoding: `speculative-b200-0`."""
    pools["speculative"].wait_ready(READY_S)
    return pools["speculative"]


@pytest.fixture
def make_pool(cluster: AgentCluster, namespace: str) -> PoolMaker:
    """Create small pools in the test's namespace; their warm-up is short."""

    def make(name: str = "p", **spec: object) -> ClusterPool:
        spec["engine"] = WARM_UP | dict(spec.get("engine") or {})  # type: ignore[call-overload]
        pool = ClusterPool(cluster.kubectl, namespace, small_pool(name, **{"router": NO_ROUTER, **spec}))
        pool.apply()
        return pool

    return make


@pytest.fixture
def add_nodes(cluster: AgentCluster) -> Iterator[NodeMaker]:
    """Add nodes that only this test uses. Ask for it before `make_pool`: they go when the pools are gone."""
    added: list[str] = []

    def add(*names: str, place: str) -> Json:
        added.extend(names)
        for name in names:
            cluster.told("node", "add", name)
        cluster.kubectl("annotate", "node", *names, f"{START_SPEED_ANNOTATION}={START_SPEED:g}")
        cluster.kubectl("label", "node", *names, f"test/place={place}")
        return {"nodeSelector": {"test/place": place}}

    yield add
    cluster.kubectl("delete", "node", "--ignore-not-found", *added)


PodRunner = Callable[..., "PodOnNode"]


@dataclass(frozen=True)
class PodOnNode:
    """A pod of a test, and how to look at it."""

    kubectl: Kubectl
    namespace: str
    name: str

    def get(self) -> Json:
        return self.kubectl.json("get", "pod", self.name, "-n", self.namespace)

    @property
    def phase(self) -> str:
        return str(self.get()["status"].get("phase"))

    def container(self) -> Json:
        statuses = self.get()["status"].get("containerStatuses") or [{}]
        found: Json = statuses[0]
        return found

    def waiting(self) -> Json:
        found: Json = self.container().get("state", {}).get("waiting") or {}
        return found

    def wait_for(self, what: str, condition: Callable[[], object], timeout_s: float = 40) -> None:
        wait_until(condition, timeout_s=timeout_s, describe=lambda: f"{what}; {json.dumps(self.get()['status'])}")

    def logs(self, *arguments: str) -> str:
        return self.kubectl("logs", self.name, "-n", self.namespace, *arguments)


@pytest.fixture
def run_pod(cluster: AgentCluster, namespace: str) -> PodRunner:
    """Create a pod of one busybox container that runs a shell script."""

    def run(script: str, *, pod: Json | None = None, name: str = "p", **container: Any) -> PodOnNode:
        spec = {
            "terminationGracePeriodSeconds": 5,
            "containers": [
                {"name": "main", "image": "busybox", "command": ["sh", "-c", script], **container},
            ],
            **(pod or {}),
        }
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": spec,
        }
        cluster.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(manifest))
        return PodOnNode(cluster.kubectl, namespace, name)

    return run
