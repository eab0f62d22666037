"""Pool, namespace, operator and CRD go in any order, and nothing is left or waits for anything."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.kubectl import Kubectl
from support.operator_process import OperatorProcess
from support.pool_on_cluster import small_pool
from support.waiting import wait_until

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(400)]
CRD = "inferencepools.sglpool.io"
CRD_FILE = Path(__file__).parents[2] / "crds/sglpool.io_inferencepools.yaml"
CHILDREN = "statefulsets,deployments,services,configmaps,serviceaccounts,roles,pdb,networkpolicies,pods"
ORDERS = [
    *itertools.permutations(("pool", "operator", "crd")),
    *itertools.permutations(("namespace", "operator", "crd")),
]


def serve_pools(kubectl: Kubectl) -> None:
    """Install the CRD and wait until it is served."""
    wait_until(
        lambda: (
            kubectl.run("apply", "--server-side", "-f", str(CRD_FILE)).returncode == 0
            and kubectl.run("get", "sglpool").returncode == 0
        ),
        timeout_s=30,
        describe="pools are served",
    )


class Install:
    """A pool in a namespace of its own, which will go in one order."""

    def __init__(self, kubectl: Kubectl, order: Sequence[str]) -> None:
        self._kubectl = kubectl
        self.left = list(order)
        self.early = order.index("operator") < order.index("crd")
        self.namespace = f"removal-{uuid.uuid4().hex[:8]}"
        self._kubectl("create", "namespace", self.namespace)

    def children(self) -> set[tuple[str, str]]:
        items = self._kubectl.json("get", CHILDREN, "-n", self.namespace, "-l", "sglpool.io/pool=p")["items"]
        return {(item["kind"], item["metadata"]["name"]) for item in items}

    def go_on(self) -> None:
        """Delete what is its own, until it is the turn of what all share."""
        while self.left and self.left[0] not in {"operator", "crd"}:
            if self.left.pop(0) == "namespace":
                self._kubectl("delete", "namespace", self.namespace, "--timeout=90s", timeout_s=100)
            elif self._kubectl.run("get", "crd", CRD).returncode == 0:  # else it went with its CRD
                self._kubectl("delete", "sglpool", "p", "-n", self.namespace, "--timeout=60s")

    def gone(self, what: str) -> None:
        assert self.left.pop(0) == what


def go_on(installs: Sequence[Install]) -> None:
    """Each on its own: what one waits for is nothing to the others."""
    with ThreadPoolExecutor(len(installs)) as pool:
        list(pool.map(Install.go_on, installs))


@pytest.fixture
def alone(kubectl: Kubectl, operator: OperatorProcess) -> Iterator[None]:
    """The session's operator is away: it would look after these pools too."""
    operator.stop()
    yield
    serve_pools(kubectl)
    operator.start()


@pytest.fixture
def installs(alone: None, kubectl: Kubectl) -> Iterator[list[Install]]:
    made = [Install(kubectl, order) for order in ORDERS]
    yield made
    for install in made:
        kubectl("delete", "namespace", install.namespace, "--ignore-not-found", "--wait=false")


def wait_for_the_collector(kubectl: Kubectl) -> None:
    """Kubernetes' garbage collector looks for new kinds twice a minute; what waits for it tells when it did."""
    # Where no operator makes anything of it.
    place = ("-n", "default")
    kubectl("apply", *place, "-f", "-", input=json.dumps(small_pool("witness", replicas=0)))
    kubectl("delete", "sglpool", "witness", *place, "--cascade=foreground", "--timeout=90s", timeout_s=100)


def make_pools(kubectl: Kubectl, installs: Sequence[Install]) -> None:
    pools = []
    for install in installs:
        pool = small_pool("p")
        pool["metadata"]["namespace"] = install.namespace
        pools.append(pool)
    kubectl("apply", "-f", "-", input="\n---\n".join(map(json.dumps, pools)))


def start(kubeconfig: Path, log: Path, installs: Sequence[Install]) -> OperatorProcess:
    process = OperatorProcess(kubeconfig, log, *(w for i in installs for w in ("--namespace", i.namespace)))
    process.start()
    return process


def test_every_order_of_removal_ends_clean(
    installs: list[Install], kubectl: Kubectl, kubeconfig: Path, tmp_path: Path
) -> None:
    early = [i for i in installs if i.early]
    late = [i for i in installs if not i.early]
    with ThreadPoolExecutor() as pool:
        collector = pool.submit(wait_for_the_collector, kubectl)
        make_pools(kubectl, installs)
        starts = [pool.submit(start, kubeconfig, tmp_path / f"{i}.log", group) for i, group in enumerate((early, late))]
    operators = [process.result() for process in starts]
    try:
        collector.result()
        for install in installs:
            wait_until(
                lambda i=install: {"StatefulSet", "Deployment", "Pod"} <= {kind for kind, _ in i.children()},
                timeout_s=60,
                describe="a pool has children",
            )
        go_on(installs)

        operators[0].stop()
        for install in early:
            install.gone("operator")
        go_on(early)

        kubectl("delete", "crd", CRD, "--timeout=60s")
        for install in installs:
            install.gone("crd")
        go_on(installs)

        # Without its CRD it ends by itself, with one sentence; a pod would be started again until the CRD is back.
        log = tmp_path / "1.log"
        sentence = "inferencepools.sglpool.io is not served any more: somebody deleted the CRD"
        wait_until(lambda: sentence in log.read_text(), timeout_s=60, describe=f"the operator says `{sentence}`")
        for install in late:
            install.gone("operator")
        go_on(late)
    finally:
        for process in operators:
            process.kill()
    for install in installs:
        assert not install.left
        wait_until(
            lambda i=install: not i.children(),
            timeout_s=60,
            describe=lambda i=install: f"the children in {i.namespace} are gone: {i.children()}",
        )
