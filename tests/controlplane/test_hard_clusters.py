"""Clusters that make it hard: an API server that is away or silent, admission that changes and limits our objects."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.kubectl import Kubectl
from support.operator_process import OperatorProcess
from support.pool_on_cluster import ClusterPool, PoolMaker, small_pool
from support.tcp_proxy import TcpProxy, proxy_to
from support.waiting import wait_quiet, wait_until

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(300)]
Json = dict[str, Any]
OUTAGE_S = 30.0
QUIET_S = 6.0
MARK = "mesh/injected"
MOST_LINES = 150
"""Of an operator that knows nothing better than to try again, with growing pauses, for as long as an outage takes."""


@pytest.fixture
def behind_proxy(
    kubeconfig: Path, namespace: str, operator: OperatorProcess, tmp_path: Path
) -> Iterator[tuple[TcpProxy, OperatorProcess]]:
    """An operator whose way to the API server can be cut; the session's own is away."""
    operator.stop()
    with proxy_to(kubeconfig) as proxy:
        config = proxy.kubeconfig(kubeconfig, tmp_path / "kubeconfig")
        process = OperatorProcess(config, tmp_path / "operator.log", "--namespace", namespace)
        process.start()
        yield proxy, process
        process.kill()
    operator.start()


@pytest.mark.parametrize("outage", [TcpProxy.away, TcpProxy.silent], ids=["away", "silent"])
def test_an_api_server_that_is_away_for_a_while_is_waited_for(
    outage: Callable[[TcpProxy], None],
    behind_proxy: tuple[TcpProxy, OperatorProcess],
    kubectl: Kubectl,
    namespace: str,
) -> None:
    proxy, process = behind_proxy
    pool = ClusterPool(kubectl, namespace, small_pool("p", router={"enabled": False}))
    pool.apply()
    pool.wait_ready()

    before = process.log.read_text()
    outage(proxy)
    pool.apply(replicas=2)
    replicas = wait_quiet(
        lambda: pool.statefulset()["spec"]["replicas"], quiet_s=OUTAGE_S, timeout_s=OUTAGE_S, what="it is away"
    )
    assert replicas == 1, "nobody does it"
    told = process.log.read_text()[len(before) :]
    assert len(told.splitlines()) < MOST_LINES, "a log that a person can read"
    assert process.get("/metrics")[0] == 200, "it is alive"

    proxy.back()
    wait_until(lambda: pool.statefulset()["spec"]["replicas"] == 2, timeout_s=90, describe="it goes on by itself")
    pool.wait_ready()


def test_admission_that_changes_our_objects_is_not_fought(
    make_pool: PoolMaker, kubectl: Kubectl, namespace: str
) -> None:
    """A policy that adds to pods and templates, as meshes and mirrors of images do."""
    name = f"meddle-{namespace}"
    added = f'Object{{metadata: Object.metadata{{annotations: {{"{MARK}": "yes"}}}}}}'
    template = (
        "Object{spec: Object.spec{template: Object.spec.template{metadata: Object.spec.template.metadata{"
        f'annotations: {{"{MARK}": "yes"}}}}}}}}}}'
    )
    for suffix, group, resource, expression in (
        ("pods", "", "pods", added),
        ("sets", "apps", "statefulsets", template),
        ("deploys", "apps", "deployments", template),
    ):
        apply_policy(kubectl, f"{name}-{suffix}", namespace, group, resource, expression)
    try:
        # A template that is changed later is a new revision, and then replicas are rightly replaced.
        wait_until(lambda: in_force(kubectl, namespace), timeout_s=60, describe="every policy is in force")
        pool = make_pool()
        pool.wait_ready(timeout_s=120)
        assert all(MARK in pod["metadata"]["annotations"] for pod in pool.pods().values())
        assert MARK in pool.statefulset()["spec"]["template"]["metadata"]["annotations"]
        wait_quiet(lambda: written(pool), quiet_s=QUIET_S, timeout_s=90, what="nothing is written at rest")
        before = pool.uids()
        pool.apply(replicas=2)
        pool.wait_ready(timeout_s=120)
        assert before.items() <= pool.uids().items(), "no replica is replaced for it"
    finally:
        for suffix in ("pods", "sets", "deploys"):
            kinds = "mutatingadmissionpolicies,mutatingadmissionpolicybindings"
            kubectl("delete", kinds, f"{name}-{suffix}", "--ignore-not-found")


def written(pool: ClusterPool) -> dict[str, str]:
    """The pool and its objects, each as it was written last."""
    return pool.versions() | {"pool": pool.get()["metadata"]["resourceVersion"]}


def apply_policy(kubectl: Kubectl, name: str, namespace: str, group: str, resource: str, expression: str) -> None:
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [group],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE", "UPDATE"],
                        "resources": [resource],
                    }
                ],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            },
            "reinvocationPolicy": "IfNeeded",
            "failurePolicy": "Fail",
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name},
    }
    for manifest in (policy, binding):
        kubectl("apply", "-f", "-", input=json.dumps(manifest))


def in_force(kubectl: Kubectl, namespace: str) -> bool:
    """Whether a Pod, a StatefulSet and a Deployment would be changed on their way in; none of them is made."""
    pod = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "x", "image": "x"}]}}
    of_pods = {"selector": {"matchLabels": pod["metadata"]["labels"]}, "template": pod}
    shapes = [
        {"apiVersion": "v1", "kind": "Pod", "spec": pod["spec"]},
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "spec": {"serviceName": "x", **of_pods}},
        {"apiVersion": "apps/v1", "kind": "Deployment", "spec": of_pods},
    ]
    return all(
        MARK in kubectl("create", "-n", namespace, "--dry-run=server", "-o", "json", "-f", "-", input=json.dumps(shape))
        for shape in ({**shape, "metadata": {"name": "x"}} for shape in shapes)
    )


def test_a_limit_range_that_is_too_tight_is_named(make_pool: PoolMaker, kubectl: Kubectl, namespace: str) -> None:
    limits = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "small-pods-only"},
        "spec": {"limits": [{"type": "Container", "max": {"memory": "2Gi"}}]},
    }
    kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(limits))
    pool = make_pool(router={"enabled": False})
    message = pool.wait_for("Stalled", reason="PodsRefused")["message"]
    # Such a maximum is also the default limit, which is what the API server then measures the pod by.
    assert "memory limit of 2Gi" in message
    kubectl("delete", "limitrange", "small-pods-only", "-n", namespace)
    pool.wait_ready(timeout_s=120)


def test_a_namespace_that_is_going_gets_no_more_of_us(
    make_pool: PoolMaker, kubectl: Kubectl, namespace: str, operator: OperatorProcess
) -> None:
    pool = make_pool()
    pool.wait_ready(timeout_s=90)
    begin = len(operator.log.read_text())
    kubectl("delete", "namespace", namespace, "--timeout=90s", timeout_s=100)
    written = operator.log.read_text()[begin:]
    assert "Traceback" not in written
    assert len([line for line in written.splitlines() if namespace in line]) < MOST_LINES
