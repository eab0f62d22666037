"""The operator with the chart's own account: what it has is enough, and each right that it lacks is told.

The session's operator, which may do anything, is stopped meanwhile.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglpool.controller.metrics import Metrics
from sglpool.controller.rights import Rights
from sglpool.kube import KubeClient
from support.accounts import ChartAccount, Rule
from support.kubectl import Kubectl
from support.operator_process import OperatorProcess
from support.pool_on_cluster import ClusterPool, small_pool
from support.waiting import wait_until

pytestmark = pytest.mark.controlplane

GATE = {"image": "example/gate:1", "args": [], "timeout": "1m"}
QUICK = {"drainTimeout": "1s"}


@pytest.fixture(scope="module", autouse=True)
def alone(operator: OperatorProcess) -> Iterator[None]:
    """No other operator works."""
    operator.stop()
    yield
    operator.start()


@pytest.fixture(scope="module")
def account(kubectl: Kubectl, alone: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChartAccount]:
    """The account of an installation for all namespaces, with a Lease."""
    namespace = f"system-{uuid.uuid4().hex[:10]}"
    kubectl("create", "namespace", namespace)
    found = ChartAccount.create(kubectl, namespace, tmp_path_factory.mktemp("account"))
    yield found
    found.delete()
    kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.fixture(scope="module")
def running(account: ChartAccount, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """An operator with that account, for all tests of this module that do not need one of their own."""
    process = OperatorProcess(account.kubeconfig, tmp_path_factory.mktemp("running") / "operator.log")
    process.start()
    yield process
    process.stop()


def refused(process: OperatorProcess) -> list[str]:
    """Requests that the API server forbade, as the metrics tell."""
    return re.findall(r'sglpool_api_requests_total\{code="40[13]".*', process.get("/metrics")[1])


def test_the_chart_grants_all_that_a_pools_life_needs(
    running: OperatorProcess, kubectl: Kubectl, namespace: str
) -> None:
    pool = ClusterPool(kubectl, namespace, small_pool("p", replicas=1))
    pool.apply()
    pool.wait_ready()
    # A roll-out with a gate, two routers with a store, then neither.
    pool.apply(rollout=QUICK | {"gate": GATE}, engine={"env": [{"name": "A", "value": "1"}]})
    wait_until(
        lambda: kubectl.json("get", "jobs", "-n", namespace)["items"], timeout_s=60, describe="the gate's Job exists"
    )
    pool.apply(rollout=None, engine=None, router={"enabled": False})
    wait_until(
        lambda: not kubectl.json("get", "deployments,roles", "-n", namespace)["items"],
        timeout_s=60,
        describe="the router is gone",
    )
    pool.wait_ready()
    assert pool.condition("NodesReady") == {}
    kubectl("delete", "sglpool", "p", "-n", namespace)
    assert refused(running) == []
    assert "sglpool_missing_permissions{" not in running.get("/metrics")[1]


def test_each_right_that_is_taken_away_shows_in_log_and_metric(
    account: ChartAccount, caplog: pytest.LogCaptureFixture
) -> None:
    """One after the other, on the real API server, by the same code that the operator runs at its start."""
    # Clusters differ in whether they ask for it.
    unasked = {("sglpool.io", "inferencepools/finalizers", "update")}
    silent = asyncio.run(_take_each(account, [rule for rule in account.rules() if rule not in unasked], caplog))
    assert silent == []


async def _take_each(account: ChartAccount, rules: list[Rule], caplog: pytest.LogCaptureFixture) -> list[Rule]:
    metrics, silent = Metrics(), []
    async with KubeClient.connect(str(account.kubeconfig)) as kube:
        rights = Rights(kube, namespaces=None, lease_namespace=None, refusals=lambda: 0, show=metrics.observe_missing)
        for rule in rules:
            group, resource, verb = rule
            labels = {"group": group, "resource": resource, "verb": verb, "namespace": ""}
            account.take(rule)
            caplog.clear()
            shown: float | None = None
            for _ in range(20):  # the authorizer learns of a changed role a moment later
                assert await rights.look()
                if shown := metrics.registry.get_sample_value("sglpool_missing_permissions", labels):
                    break
                await asyncio.sleep(0.05)
            name, _, sub = resource.partition("/")
            words = f"{verb} {name}{f'.{group}' if group else ''}{f'/{sub}' if sub else ''} in all namespaces"
            if not shown or words not in caplog.text:
                silent.append(rule)
    account.give_back()
    return silent


ESSENTIAL: list[Rule] = [("apps", "statefulsets", "watch"), ("", "configmaps", "list")]


@pytest.mark.parametrize("rule", ESSENTIAL, ids=str)
def test_without_an_essential_right_it_waits_and_says_for_what(
    account: ChartAccount, running: OperatorProcess, tmp_path: Path, rule: Rule
) -> None:
    group, resource, verb = rule
    account.take(rule)
    process = OperatorProcess(account.kubeconfig, tmp_path / "operator.log")
    try:
        process.start(until="/healthz")
        wait_until(
            lambda: "may not" in process.get("/readyz")[1], timeout_s=30, describe="/readyz says what is missing"
        )
        code, text = process.get("/readyz")
        assert code == 503
        assert f"may not {verb} {resource}{f'.{group}' if group else ''} in all namespaces: grant it" in text
        assert f'resource="{resource}",verb="{verb}"' in process.get("/metrics")[1]
        account.give_back()
        wait_until(lambda: process.get("/readyz")[0] == 200, timeout_s=60, describe="it works once it may")
        assert "sglpool_missing_permissions{" not in process.get("/metrics")[1]
    finally:
        account.give_back()
        process.stop()


# What creates a pool and its router, and what removes the router again.
CREATING: list[Rule] = [
    ("apps", "statefulsets", "create"),
    ("apps", "statefulsets", "patch"),
    ("apps", "deployments", "create"),
    ("", "configmaps", "patch"),
    ("", "services", "create"),
    ("", "serviceaccounts", "create"),
    ("policy", "poddisruptionbudgets", "create"),
    ("networking.k8s.io", "networkpolicies", "create"),
    ("rbac.authorization.k8s.io", "roles", "create"),
    ("rbac.authorization.k8s.io", "rolebindings", "create"),
]
REMOVING: list[Rule] = [
    ("apps", "deployments", "delete"),
    ("", "services", "get"),
    ("rbac.authorization.k8s.io", "roles", "delete"),
    ("networking.k8s.io", "networkpolicies", "delete"),
]


def stalled(pool: ClusterPool, rule: Rule) -> str:
    """Wait for the condition that a missing right leads to; its message."""
    message: str = pool.wait_for("Stalled", reason="Forbidden")["message"]
    assert f'cannot {rule[2]} resource "{rule[1]}"' in message, message
    assert pool.condition("Ready")["reason"] == "Forbidden"
    return message


def test_a_pool_says_which_right_its_creation_lacks(
    account: ChartAccount, running: OperatorProcess, kubectl: Kubectl, namespace: str
) -> None:
    for number, rule in enumerate(CREATING):
        account.take(rule)
        pool = ClusterPool(kubectl, namespace, small_pool(f"p{number}"))
        pool.apply()
        stalled(pool, rule)
        kubectl("delete", "sglpool", pool.name, "-n", namespace, "--wait=false")
    account.give_back()
    assert refused(running)


def test_a_pool_says_which_right_a_removal_lacks_and_goes_on_when_it_is_granted(
    account: ChartAccount, running: OperatorProcess, kubectl: Kubectl, namespace: str
) -> None:
    pool = ClusterPool(kubectl, namespace, small_pool("p"))
    for rule in REMOVING:
        account.give_back()
        pool.apply(router={"enabled": True})
        pool.wait_ready()
        account.take(rule)
        pool.apply(router={"enabled": False})
        stalled(pool, rule)
    account.give_back()
    pool.apply(router={"enabled": False, "replicas": 2})  # or a minute later by itself
    pool.wait_ready()
    assert pool.condition("Stalled") == {}


# What changes a pool: a replica that has to leave, a gate, a GPU type that left the spec.
CHANGING: list[tuple[Rule, dict[str, Any]]] = [
    (("", "pods", "patch"), {"replicas": 1}),
    (
        ("batch", "jobs", "create"),
        {"rollout": QUICK | {"gate": GATE}, "engine": {"env": [{"name": "A", "value": "1"}]}},
    ),
    (("apps", "statefulsets", "delete"), {"rollout": QUICK, "engine": None, "gpus": [{"type": "B300"}]}),
]


def test_a_pool_says_which_right_a_change_lacks_and_goes_on_when_it_is_granted(
    account: ChartAccount, running: OperatorProcess, kubectl: Kubectl, namespace: str
) -> None:
    pool = ClusterPool(kubectl, namespace, small_pool("p", replicas=2, router={"enabled": False}))
    pool.apply()
    pool.wait_ready()
    try:
        for rule, change in CHANGING:
            account.take(rule)
            pool.apply(**change)
            stalled(pool, rule)
            account.give_back()
    finally:
        account.give_back()
    pool.apply(router={"enabled": False, "replicas": 2})  # or a minute later by itself
    pool.wait_ready()
    wait_until(lambda: len(pool.pods()) == 1, timeout_s=60, describe="one replica is left, of the new type")
    assert pool.condition("Stalled") == {}


def test_a_status_that_may_not_be_written_is_told_in_log_and_metrics(
    account: ChartAccount, running: OperatorProcess, kubectl: Kubectl, namespace: str
) -> None:
    account.take(("sglpool.io", "inferencepools/status", "patch"))
    try:
        ClusterPool(kubectl, namespace, small_pool("p")).apply()
        words = f"pool={namespace}/p Cannot patch the status of InferencePool {namespace}/p"
        wait_until(lambda: words in running.log.read_text(), timeout_s=30, describe="the log says so")
        assert any('resource="inferencepools"' in line for line in refused(running))
    finally:
        account.give_back()


@pytest.fixture
def nobody_else(running: OperatorProcess) -> Iterator[None]:
    """The operator with rights everywhere is away: it would do the work."""
    running.stop()
    yield
    running.start()


@pytest.mark.usefixtures("nobody_else")
def test_in_some_namespaces_a_role_is_enough_and_nothing_is_cluster_wide(
    kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    account = ChartAccount.create(
        kubectl, namespace, tmp_path, "--set", f"watchNamespaces={{{namespace}}}", "--set", "leaderElection=true"
    )
    assert {o["kind"] for o in account.objects} == {"ServiceAccount", "Role", "RoleBinding"}
    may = kubectl.run("auth", "can-i", "list", "pods", "-A", "--as", f"system:serviceaccount:{namespace}:{namespace}")
    assert may.stdout.strip() == "no"
    process = OperatorProcess(account.kubeconfig, tmp_path / "operator.log", "--namespace", namespace)
    process.start()
    try:
        pool = ClusterPool(kubectl, namespace, small_pool("p"))
        pool.apply()
        pool.wait_ready()
        unknown = pool.condition("NodesReady")
        assert (unknown["status"], unknown["reason"]) == ("Unknown", "NodesUnreadable")
        assert (
            f'sglpool_pool_condition{{namespace="{namespace}",pool="p",type="NodesReady"}} -1.0'
            in (process.get("/metrics")[1])
        )
        # The question for nodes is a review, not a refusal; refusals raise an alert.
        assert refused(process) == []
        assert "sglpool_missing_permissions{" not in process.get("/metrics")[1]
    finally:
        process.stop()


def test_the_rules_are_the_operators_own_list_and_the_page(account: ChartAccount) -> None:
    from sglpool.kube.rights import NAMESPACED

    listed = {(r.resource.group, r.path, r.verb) for r in NAMESPACED}
    assert set(account.rules()) == listed
    assert _page() >= listed


def _page() -> set[Rule]:
    """The table of docs/permissions.md."""
    text = (Path(__file__).parents[2] / "docs/permissions.md").read_text()
    found: set[Rule] = set()
    for line in text.partition("## The operator")[2].partition("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 4 or cells[0] in ("group", "---"):
            continue
        groups = [g.strip(" `") for g in cells[0].split(",")]
        for group in groups:
            for resource in cells[1].split(","):
                for verb in cells[2].split(","):
                    found.add(("" if group == "core" else group, resource.strip(" `"), verb.strip(" `")))
    return found
