"""Rules of nodes, one by one: whose pods are deleted, and which replicas have to leave."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sglpool.controller.nodes import NodeStore
from sglpool.plan import Observed
from sglpool.plan.nodes import evictions, lost_pods, next_change_s, node_problem, without_lost_tests
from sglpool.plan.observed import ObservedPod
from sglpool.plan.surroundings import ObservedJob, ObservedNode
from support import pools
from support.observed import observed_pod, observed_statefulset

POOL = pools.pool({"gpus": [{"type": "B200"}]}, metadata={"uid": "pool"})
NOW_S = 10_000.0
ENDING = {"ready": False, "terminating": True}


def node(**changes: object) -> ObservedNode:
    fields = {"name": "n", "ready": True, "since_s": 0.0, "gpus": 8, **changes}
    return ObservedNode(**fields)  # type: ignore[arg-type]


def seen(*pods: ObservedPod, nodes: dict[str, ObservedNode] | None, **more: object) -> Observed:
    statefulset = observed_statefulset(replicas=4)
    return Observed(statefulsets=(statefulset,), pods=pods, nodes=nodes, refusals={}, **more)  # type: ignore[arg-type]


def away(since_s: float, **changes: object) -> dict[str, ObservedNode]:
    return {"n": node(ready=False, since_s=since_s, **changes)}


@pytest.mark.parametrize(
    ("pod", "nodes", "lost"),
    [
        pytest.param(observed_pod(0), None, False, id="nodes cannot be read"),
        pytest.param(observed_pod(0), {"n": node()}, False, id="a good node"),
        pytest.param(observed_pod(0, ready=False), away(NOW_S - 59), False, id="away for less than a minute"),
        pytest.param(observed_pod(0, ready=False), away(NOW_S - 60), True, id="away for a minute"),
        pytest.param(observed_pod(0), away(NOW_S + 60), False, id="away since tomorrow"),
        pytest.param(observed_pod(0), away(NOW_S, deleted=True), True, id="the node is gone"),
        pytest.param(observed_pod(0, **ENDING), {"n": node()}, False, id="ending on a good node"),
        pytest.param(observed_pod(0, ends_s=NOW_S + 99, **ENDING), away(NOW_S - 29), False, id="ending, away shortly"),
        pytest.param(observed_pod(0, ends_s=NOW_S + 99, **ENDING), away(NOW_S - 30), True, id="ending, away longer"),
        pytest.param(observed_pod(0, ends_s=NOW_S - 6, **ENDING), away(NOW_S - 9), True, id="past its grace"),
        pytest.param(observed_pod(0, owner_uid="", **ENDING), away(0.0), True, id="ending, its StatefulSet is gone"),
        pytest.param(observed_pod(0, owner_uid="other"), away(0.0), False, id="somebody else's"),
        pytest.param(observed_pod(0, node="", ready=False), away(0.0), False, id="no node yet"),
    ],
)
def test_a_pod_is_lost_when(pod, nodes, lost):
    steps = lost_pods(POOL, seen(pod, nodes=nodes), now_s=NOW_S)
    assert [(s.name, s.uid, s.grace_period_s) for s in steps] == ([(pod.name, pod.uid, 0)] if lost else [])


def test_routers_of_a_lost_node_are_replaced_too():
    router = observed_pod(-1, name="kimi-router-x", component="router", owner_uid="rs", ready=False)
    steps = lost_pods(POOL, seen(nodes=away(0.0), router_pods=(router,)), now_s=NOW_S)
    assert [s.name for s in steps] == ["kimi-router-x"]


LOST = observed_pod(0, ready=False)


@pytest.mark.parametrize(
    ("pods", "nodes", "words"),
    [
        pytest.param(
            [LOST],
            away(NOW_S),
            "kimi-b200-0: node n is not ready. When it has not been for 60 s, its replicas come back on other nodes.",
            id="away",
        ),
        pytest.param(
            [LOST], away(NOW_S, deleted=True), "kimi-b200-0: node n is gone. Its replicas come back", id="gone"
        ),
        pytest.param([LOST, observed_pod(1, **ENDING)], away(NOW_S), "(and 1 more)", id="two of them"),
        pytest.param([LOST], {"n": node()}, None, id="a good node"),
        pytest.param([observed_pod(0)], away(NOW_S), None, id="the replica is ready all the same"),
        pytest.param([LOST], None, None, id="nodes cannot be read"),
        pytest.param([observed_pod(0, ready=False, node="")], away(NOW_S), None, id="it has no node yet"),
    ],
)
def test_a_lost_node_is_named(pods, nodes, words):
    problem = node_problem(pods, seen(*pods, nodes=nodes))
    assert (problem is not None and words in problem.message) if words else problem is None
    assert problem is None or problem.reason == "NodeLost"


@pytest.mark.parametrize(
    ("nodes", "state"),
    [
        pytest.param({"n": node()}, "Running", id="a good node"),
        pytest.param(away(NOW_S - 59), "Running", id="away for less than a minute"),
        pytest.param(away(NOW_S - 60), "Disrupted", id="away for a minute"),
        pytest.param(away(NOW_S, deleted=True), "Disrupted", id="the node is gone"),
        pytest.param(None, "Running", id="nodes cannot be read"),
    ],
)
def test_a_test_on_a_lost_node_is_disrupted_and_no_other(nodes, state):
    fields = {"name": "j", "owner_uid": "pool", "state": "Running", "message": "", "pod_uid": "u", "word": ""}
    jobs = (ObservedJob(uid="lost", **fields), ObservedJob(uid="other", **fields))
    test = observed_pod(-1, name="kimi-gate-x", component="gate", owner_uid="lost", ready=False)
    observed = seen(nodes=nodes, gate_pods=(test,), jobs=jobs)
    found = without_lost_tests(observed, now_s=NOW_S)
    assert [job.state for job in found.jobs] == [state, "Running"]
    ended = replace(observed, jobs=tuple(replace(job, state="Passed") for job in jobs))
    assert without_lost_tests(ended, now_s=NOW_S).jobs == ended.jobs, "it has told its end"


def test_ready_replicas_leave_a_cordoned_node():
    pods = [observed_pod(0), observed_pod(1, ready=False), observed_pod(2, node="m")]
    found = evictions(POOL, seen(*pods, nodes={"n": node(unschedulable=True), "m": node(name="m")}), now_s=NOW_S)
    assert {uid: (e.reason, e.node, e.even_last) for uid, e in found.items()} == {
        pods[0].uid: ("node n is cordoned", "n", False)
    }


def test_a_node_short_of_gpus_gives_up_who_is_not_ready_and_then_the_highest_ordinal():
    pods = [observed_pod(0), observed_pod(1)]
    short = {"n": node(gpus=7, gpus_since_s=NOW_S - 60)}
    [(uid, eviction)] = evictions(POOL, seen(*pods, nodes=short), now_s=NOW_S).items()
    assert (uid, eviction.reason) == (pods[1].uid, "node n has 7 of the 8 GPUs that its replicas need")
    assert not lost_pods(POOL, seen(*pods, nodes=short), now_s=NOW_S)
    pods[0] = observed_pod(0, ready=False)
    assert [s.name for s in lost_pods(POOL, seen(*pods, nodes=short), now_s=NOW_S)] == ["kimi-b200-0"]
    assert not evictions(POOL, seen(*pods, nodes=short), now_s=NOW_S)


def test_a_drain_for_want_of_gpus_outlives_the_operator_that_began_it():
    """Since when GPUs are missing is not known to the next one; that it was long enough is."""
    pods = [observed_pod(0), observed_pod(1, draining=True, drain_cause="FewGPUs")]
    nodes = {"n": node(gpus=7, gpus_since_s=NOW_S)}
    assert evictions(POOL, seen(*pods, nodes=nodes), now_s=NOW_S).keys() == {pods[1].uid}
    nodes = {"n": node(gpus=8, gpus_since_s=NOW_S)}
    assert not evictions(POOL, seen(*pods, nodes=nodes), now_s=NOW_S)


@pytest.mark.parametrize(
    "changes",
    [{"gpus": 8}, {"gpus": None}, {"gpus": 4, "gpus_since_s": NOW_S - 59}, {"gpus": 0, "ready": False}],
    ids=["enough", "says nothing", "only just", "not ready: another rule's"],
)
def test_gpus_are_not_missed(changes):
    pods = [observed_pod(0), observed_pod(1)]
    nodes = {"n": node(since_s=NOW_S, **changes)}
    assert not evictions(POOL, seen(*pods, nodes=nodes), now_s=NOW_S)
    assert not lost_pods(POOL, seen(*pods, nodes=nodes), now_s=NOW_S)


def test_time_alone_matters_until_a_node_counts_as_lost():
    assert next_change_s(seen(observed_pod(0), nodes=away(NOW_S - 20)), now_s=NOW_S) == 40.0
    assert next_change_s(seen(observed_pod(0, **ENDING), nodes=away(NOW_S - 20)), now_s=NOW_S) == 10.0
    assert next_change_s(seen(observed_pod(0), nodes={"n": node()}), now_s=NOW_S) is None
    assert next_change_s(seen(observed_pod(0), nodes=None), now_s=NOW_S) is None


def manifest(*, ready: str = "True", gpus: str = "8", cordoned: bool = False) -> dict:
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    return {
        "metadata": {"name": "n"},
        "spec": {"unschedulable": cordoned},
        "status": {"conditions": [condition], "allocatable": {"nvidia.com/gpu": gpus}},
    }


class TestNodeStore:
    def setup_method(self) -> None:
        self.now_s = 100.0
        self.store = NodeStore(lambda: self.now_s)
        self.store.watched = True

    def known(self, name: str = "n") -> ObservedNode:
        nodes = self.store.of([name])
        assert nodes is not None
        return nodes[name]

    def test_news_is_what_the_planner_looks_at(self):
        assert self.store.put(manifest())
        assert not self.store.put(manifest())
        for news in (manifest(ready="Unknown"), manifest(gpus="7"), manifest(cordoned=True)):
            assert self.store.put(news)

    def test_nothing_is_known_where_nodes_cannot_be_read(self):
        self.store.put(manifest())
        assert self.store.of(["n"]) is None
        self.store.replace(["n"])
        assert self.known().ready
        self.store.watched = False
        assert self.store.of(["n"]) is None, "a node that is back would be lost until the next listing"
        self.store.watched = True
        self.store.replace(None)
        assert self.store.of(["n"]) is None

    def test_since_when_a_node_has_its_gpus_is_what_was_seen(self):
        self.store.put(manifest())
        self.store.replace(["n"])
        self.now_s = 200.0
        self.store.put(manifest(ready="False"))
        assert self.known().gpus_since_s == 100.0
        self.store.put(manifest(gpus="7"))
        assert (self.known().gpus, self.known().gpus_since_s) == (7, 200.0)

    @pytest.mark.parametrize("by_listing", [True, False])
    def test_a_node_that_was_deleted_is_gone_until_it_is_back(self, by_listing):
        self.store.put(manifest())
        self.store.replace(["n"])
        self.store.replace([]) if by_listing else self.store.forget("n")
        assert self.known().deleted
        self.store.put(manifest())
        assert not self.known().deleted

    def test_a_node_that_nobody_has_seen_may_be_news(self):
        self.store.replace([])
        assert (self.known().ready, self.known().deleted, self.known().since_s) == (False, False, 100.0)
        self.now_s = 150.0
        assert self.known().since_s == 100.0
