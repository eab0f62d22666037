"""A new version of the operator takes over from the one before, and no model is restarted.

`tests/upgrade/sglpool-previous.tar.xz` holds the operator of the previous release, as source: replace it at each
release.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.kubectl import Kubectl
from support.operator_process import OperatorProcess
from support.pool_on_cluster import ClusterPool, small_pool
from support.waiting import wait_quiet

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(400)]
PREVIOUS = Path(__file__).parents[1] / "upgrade/sglpool-previous.tar.xz"
KINDS = (
    "statefulsets,deployments,services,serviceaccounts,configmaps,roles,rolebindings,poddisruptionbudgets,"
    "networkpolicies,jobs"
)
QUIET_S = 4.0
"""Who is at odds with another version writes at once, and again and again."""
POOLS: dict[str, dict[str, Any]] = {
    "plain": {"replicas": 2, "router": {"enabled": False}},
    "routed": {"router": {"replicas": 2, "sessionStore": {"managed": {}}, "auth": {"apiKeysSecret": {"name": "keys"}}}},
    "scaled": {"autoscaling": {"minReplicas": 2, "maxReplicas": 4}, "kvCache": {"hiCache": {"size": "64G"}}},
    "gated": {"rollout": {"gate": {"image": "example/test:1"}}, "gpus": [{"type": "B200"}, {"type": "B300"}]},
}


@pytest.fixture(scope="module")
def previous(kubeconfig: Path, operator: OperatorProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The package of the release before; the session's operator is away."""
    folder = tmp_path_factory.mktemp("previous")
    with tarfile.open(PREVIOUS) as archive:
        archive.extractall(folder, filter="data")
    operator.stop()
    yield folder
    operator.start()


class World:
    """Pools in one namespace, and what of them was written."""

    def __init__(self, kubectl: Kubectl, namespace: str) -> None:
        self.kubectl, self.namespace = kubectl, namespace
        self.pools = {name: ClusterPool(kubectl, namespace, small_pool(name, **spec)) for name, spec in POOLS.items()}

    def apply(self) -> None:
        self.kubectl("create", "secret", "generic", "keys", "-n", self.namespace, "--from-literal=a=key")
        for pool in self.pools.values():
            pool.apply()

    def rendered(self) -> dict[str, Any]:
        """Everything but status of each child, and which pods there are."""
        found = {}
        for item in self.kubectl.json("get", KINDS, "-n", self.namespace, "-l", "sglpool.io/pool")["items"]:
            metadata = item["metadata"]
            kept = {key: metadata.get(key) for key in ("uid", "generation", "labels", "annotations", "ownerReferences")}
            body = {key: value for key, value in item.items() if key not in {"metadata", "status"}}
            found[f"{item['kind']}/{metadata['name']}"] = (kept, body)
        pods = self.kubectl.json("get", "pods", "-n", self.namespace, "-l", "sglpool.io/pool")["items"]
        found["pods"] = sorted(pod["metadata"]["uid"] for pod in pods)
        return found

    def settle(self, what: str, *, quiet_s: float = QUIET_S) -> dict[str, Any]:
        """Wait until nothing is written for a while, the pools included; return what is rendered."""

        def versions() -> object:
            kinds = f"inferencepools.sglpool.io,{KINDS},pods"
            items = self.kubectl.json("get", kinds, "-n", self.namespace)["items"]
            return {item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for item in items}

        wait_quiet(versions, quiet_s=quiet_s, timeout_s=120, what=f"nothing is written {what}")
        return self.rendered()


def test_a_new_version_changes_nothing_and_two_at_once_do_no_harm(
    kubectl: Kubectl, namespace: str, kubeconfig: Path, previous: Path, tmp_path: Path
) -> None:
    world = World(kubectl, namespace)
    old = OperatorProcess(kubeconfig, tmp_path / "old.log", "--namespace", namespace, source=previous)
    new = OperatorProcess(kubeconfig, tmp_path / "new.log", "--namespace", namespace)
    try:
        old.start()
        world.apply()
        world.pools["plain"].wait_ready()
        world.pools["routed"].wait_ready(timeout_s=120)
        # What is still on its way would look like a change by the new one.
        before = world.settle("by the old version", quiet_s=2 * QUIET_S)
        old.stop()

        new.start()
        after = world.settle("by the new version")
        assert after == before, "an upgrade is no reason to touch a child"

        old.start()
        world.settle("with both at work")
        assert world.rendered() == before
        world.pools["plain"].apply(replicas=3)
        world.pools["plain"].wait_ready(timeout_s=120)
        world.settle("after both saw a change")
        old.kill()

        # What this version makes of the same spec.
        twin = ClusterPool(kubectl, namespace, small_pool("twin", **POOLS["routed"]))
        twin.apply()
        rendered = world.pools["routed"]
        kubectl("annotate", "sglpool", rendered.name, "-n", namespace, "sglpool.io/render=latest")
        twin.wait_ready(timeout_s=120)
        world.settle("after the new rendering was asked for")
        assert engine(rendered) == engine(twin)
        assert world.rendered()["StatefulSet/gated-b200"] == before["StatefulSet/gated-b200"], "the others keep theirs"
    finally:
        old.kill()
        new.kill()


def engine(pool: ClusterPool) -> str:
    """The template of a pool's engines, without its name."""
    return json.dumps(pool.statefulset()["spec"]["template"], sort_keys=True).replace(pool.name, "POOL")
