"""The chart's life on a cluster: install, its own test, a pool, upgrade, uninstall; with Helm 3 and with Helm 4.

One story after the other on one cluster. The operator runs in its pod as the chart writes it: user 65532, a read-only
root, level `restricted`, the account's token.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandbox.install.conftest import EmptyCluster
from support.helm import CHART, Helm
from support.pool_on_cluster import ClusterPool, small_pool
from support.waiting import wait_until

pytestmark = pytest.mark.controlplane

WAIT = ("--wait", "--timeout", "90s")
CRD = "inferencepools.sglpool.io"


EACH_HELM = pytest.mark.parametrize("release", [3, 4], ids=["helm3", "helm4"], indirect=True)


@pytest.fixture
def release(request: pytest.FixtureRequest, cluster: EmptyCluster) -> Iterator[tuple[Helm, str]]:
    """A helm, and a namespace to install into; whatever is left is removed."""
    helm = cluster.helm(getattr(request, "param", 4))
    namespace = cluster.namespace(f"system-{uuid.uuid4().hex[:6]}")
    yield helm, namespace
    helm.run("uninstall", "sglpool", "-n", namespace, "--wait")
    cluster.kubectl("delete", "crd", CRD, "--ignore-not-found")
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")


def old_chart(folder: Path) -> Path:
    """The chart as it might have been before: its CRD lacks a field, and so does its version."""
    chart = folder / "sglpool"
    shutil.copytree(CHART, chart)
    path = chart / "templates/crds/inferencepools.yaml"
    lines = path.read_text().splitlines(keepends=True)
    begin = next(i for i, line in enumerate(lines) if line.strip() == "load:" and "description" in lines[i + 1])
    indent = len(lines[begin]) - len(lines[begin].lstrip())
    end = next(i for i in range(begin + 1, len(lines)) if len(lines[i]) - len(lines[i].lstrip()) <= indent)
    path.write_text("".join(lines[:begin] + lines[end:]))
    meta = yaml.safe_load((chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(yaml.safe_dump(meta | {"version": "0.0.9"}))
    return chart


def served_fields(cluster: EmptyCluster) -> set[str]:
    crd = cluster.kubectl.json("get", "crd", CRD)
    return set(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"])


def operator_pod(cluster: EmptyCluster, namespace: str) -> dict[str, Any]:
    labels = "app.kubernetes.io/name=sglpool,app.kubernetes.io/component=operator"
    pods = cluster.kubectl.json("get", "pods", "-n", namespace, "-l", labels)["items"]
    (pod,) = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    return dict(pod)


def logs(cluster: EmptyCluster, namespace: str) -> str:
    """The log of the operator that works now."""
    return cluster.kubectl("logs", operator_pod(cluster, namespace)["metadata"]["name"], "-n", namespace)


def holder(cluster: EmptyCluster, namespace: str) -> str:
    """The pod that holds the Lease, empty if nobody does."""
    lease = cluster.kubectl.json("get", "lease", "sglpool-operator", "-n", namespace)
    return str(lease["spec"]["holderIdentity"]).rpartition("-")[0]


def check_itself(helm: Helm, namespace: str) -> str:
    """What `helm test` prints; the pod's log is on standard error."""
    done = helm.run("test", "sglpool", "-n", namespace)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@EACH_HELM
def test_install_test_upgrade_uninstall(cluster: EmptyCluster, release: tuple[Helm, str], tmp_path: Path) -> None:
    helm, namespace = release
    kubectl = cluster.kubectl

    # The old chart: its CRD drops what it does not know.
    notes = helm("install", "sglpool", old_chart(tmp_path), "-n", namespace, *WAIT)
    assert f"helm test sglpool -n {namespace}" in notes
    assert "load" not in served_fields(cluster)
    team = cluster.namespace(f"team-{namespace}", level="privileged")
    pool = ClusterPool(kubectl, team, small_pool("p", replicas=0, load={"tokensPerRequest": 50000}))
    kubectl("apply", "--validate=ignore", "-n", team, "-f", "-", input=json.dumps(pool.manifest))
    pool.wait_for("Ready", reason="Parked")
    assert "load" not in pool.get()["spec"]
    wait_until(
        lambda: "older than this operator: it drops spec.load" in logs(cluster, namespace),
        timeout_s=30,
        describe="the operator says which field is dropped",
    )

    # The new one: the CRD is upgraded with it, the operator is restarted, the pool stays.
    before = operator_pod(cluster, namespace)
    uid = pool.get()["metadata"]["uid"]
    helm("upgrade", "sglpool", CHART, "-n", namespace, "--set", "operator.logLevel=debug", *WAIT)
    assert "load" in served_fields(cluster)
    assert operator_pod(cluster, namespace)["metadata"]["uid"] != before["metadata"]["uid"]
    pool.apply()
    assert pool.get()["spec"]["load"] == {"tokensPerRequest": 50000}
    assert pool.get()["metadata"]["uid"] == uid

    assert "older than this operator" not in logs(cluster, namespace)
    log = check_itself(helm, namespace)
    assert "FAILED" not in log
    assert "this account has its" in log
    assert "is ready: ok" in log

    # Uninstalled: the pool and its CRD stay, and a new installation takes them over.
    helm("uninstall", "sglpool", "-n", namespace, "--wait")
    assert pool.get()["metadata"]["uid"] == uid
    kinds = "deployments,pods,services,configmaps,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings"
    ours = "app.kubernetes.io/part-of=sglpool,app.kubernetes.io/managed-by!=sglpool"
    wait_until(
        lambda: not kubectl.json("get", kinds, "-A", "-l", ours)["items"], timeout_s=30, describe="nothing else stays"
    )
    helm("install", "sglpool", CHART, "-n", namespace, *WAIT)
    pool.apply(load={"tokensPerRequest": 40000})
    pool.wait_for("Ready", reason="Parked")
    kubectl("delete", "sglpool", "p", "-n", team)
    kubectl("delete", "namespace", team, "--wait=false")


def test_in_some_namespaces_with_a_lease_and_its_own_gpu_labels(
    cluster: EmptyCluster, release: tuple[Helm, str], tmp_path: Path
) -> None:
    """Roles only, two replicas of which one works, nodes unread, a node label of the cluster's own."""
    helm, namespace = release
    kubectl = cluster.kubectl
    kubectl("label", "node", "b200-0", "example.com/gpu=b200-sxm", "--overwrite")
    team = cluster.namespace(f"team-{namespace}", level="privileged")
    values = tmp_path / "values.yaml"
    labels = {"node_label_key": "example.com/gpu", "node_label_values": ["b200-sxm"]}
    values.write_text(
        yaml.safe_dump(
            {
                "watchNamespaces": [team],
                "replicas": 2,
                "leaderElection": True,
                "gpuTypes": {"B200": labels},
                # One that leads nowhere: the API server and the engines are asked without it.
                "proxy": {"https": "http://127.0.0.1:9", "http": "http://127.0.0.1:9"},
            }
        )
    )

    helm("install", "sglpool", CHART, "-n", namespace, "-f", values, *WAIT)

    assert not kubectl.json("get", "clusterroles", "-l", "app.kubernetes.io/part-of=sglpool")["items"]
    assert holder(cluster, namespace).startswith("sglpool-")
    pool = ClusterPool(kubectl, team, small_pool("p"))
    pool.apply()
    pool.wait_ready(120)
    assert pool.condition("NodesReady")["reason"] == "NodesUnreadable"
    affinity = pool.statefulset()["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    assert "example.com/gpu" in json.dumps(affinity)
    log = check_itself(helm, namespace)
    assert "FAILED" not in log
    assert log.count("is ready: ok") == 2
    assert "nodes may not be read" in log

    # An upgrade replaces both; the new ones are ready as they stand by, or it would never end. These may read nodes.
    helm("upgrade", "sglpool", CHART, "-n", namespace, "-f", values, "--set", "rbac.nodes=true", *WAIT)
    wait_until(
        lambda: pool.condition("NodesReady") == {}, timeout_s=60, describe="what is known of nodes is not Unknown"
    )

    # The leader goes; the other takes over at once, and the first one's place is filled.
    leader = wait_until(lambda: holder(cluster, namespace), timeout_s=60, describe="somebody holds the Lease")
    kubectl("delete", "pod", leader, "-n", namespace, "--wait=false")

    wait_until(
        lambda: holder(cluster, namespace) not in ("", leader),
        timeout_s=60,
        describe="the other replica holds the Lease",
    )
    pool.apply(replicas=0)
    pool.wait_for("Ready", reason="Parked")
    kubectl("delete", "sglpool", "p", "-n", team)
    kubectl("delete", "namespace", team, "--wait=false")


def test_what_is_wrong_is_found_by_helm_test(cluster: EmptyCluster, release: tuple[Helm, str]) -> None:
    helm, namespace = release
    helm("install", "sglpool", CHART, "-n", namespace, *WAIT)
    rules = [{"op": "remove", "path": "/rules/0"}]
    cluster.kubectl("patch", "clusterrole", "sglpool", "--type=json", "-p", json.dumps(rules))

    done = helm.run("test", "sglpool", "-n", namespace)

    assert done.returncode != 0
    log = cluster.kubectl("logs", "sglpool-test", "-n", namespace)
    assert "FAILED  this account may not" in log
    assert "list inferencepools.sglpool.io in all namespaces" in log


def test_without_helm_and_then_with_it(cluster: EmptyCluster, release: tuple[Helm, str]) -> None:
    """The commands at the head of the manifests, their way back, and the CRD in the hands of a release."""
    kubectl, root = cluster.kubectl, CHART.parents[1]
    helm, namespace = release
    files = ("-f", str(root / "manifests/install/"))
    kubectl("apply", "--server-side", "-f", str(root / "crds/"), *files)
    kubectl("rollout", "status", "deployment/sglpool", "-n", "sglpool-system", "--timeout=90s", timeout_s=100)
    kubectl("apply", "--server-side", "-f", str(root / "crds/"), *files)
    kubectl("delete", *files, timeout_s=120)
    assert kubectl.json("get", "crd", CRD)["metadata"]["name"] == CRD

    helm("install", "sglpool", CHART, "-n", namespace, "--take-ownership", "--force-conflicts", *WAIT)
    assert kubectl.json("get", "crd", CRD)["metadata"]["annotations"]["meta.helm.sh/release-namespace"] == namespace
