"""What the demo's recorder makes of the API server's and the routers' answers."""

from __future__ import annotations

from typing import Any

import pytest

from sglpool.sandbox.recorder import event_of, ready_nodes, sample_of, tells
from sglpool.sandbox.report_data import GpuType, State

Manifest = dict[str, Any]
NODES = frozenset({"b200-0"})


def pod(name: str = "p-b200-0", **more: Any) -> Manifest:
    labels = {"sglpool.io/pool": "p", "app.kubernetes.io/component": "engine", "sglpool.io/gpu-type": "B200"}
    metadata = {"name": name, "uid": f"uid-{name}", "labels": labels, **more.pop("metadata", {})}
    ready = {"type": "Ready", "status": "True" if more.pop("ready", True) else "False"}
    return {"metadata": metadata, "spec": {"nodeName": more.pop("node", "b200-0")}, "status": {"conditions": [ready]}}


def view(uid: str, **more: Any) -> Manifest:
    plain = {
        "in_flight": 2,
        "kv_used_tokens": 10,
        "kv_total_tokens": 100,
        "conversations": 3,
        "last_poll_age_s": 0.5,
        "healthy": True,
    }
    return {"uid": uid, **plain, **more}


def state(*views: Manifest) -> Manifest:
    return {"in_flight": sum(each["in_flight"] for each in views), "replicas": list(views)}


POOL: Manifest = {
    "metadata": {"name": "p"},
    "status": {
        "conditions": [{"type": "Ready", "status": "False", "reason": "Progressing"}],
        "gpus": [{"type": "B200", "desired": 3, "ready": 2, "capacity": {"targetRunningRequests": 4}}],
        "autoscaling": {"desired": 3, "reason": "DemandRose", "message": "12 in flight."},
    },
}


def test_a_reading_of_a_pool() -> None:
    sample = sample_of(7.0, POOL, [pod()], NODES, [state(view("uid-p-b200-0"))], sessions=5)
    assert (sample.at_s, sample.sessions, sample.in_flight) == (7.0, 5, 2)
    assert sample.types == (GpuType(type="B200", wanted=3, ready=2, target=4),)
    assert (sample.decided, sample.why, sample.because) == (3, "DemandRose", "12 in flight.")
    assert sample.capacity == 8
    (replica,) = sample.replicas
    assert (replica.pod, replica.gpu, replica.node, replica.state) == ("p-b200-0", "B200", "b200-0", State.SERVING)
    assert (replica.in_flight, replica.kv_used_tokens, replica.conversations) == (2, 10, 3)


def test_targets_outlive_a_status_that_does_not_say() -> None:
    infeasible = {"metadata": {}, "status": {"gpus": [{"type": "B200", "desired": 2, "ready": 2}]}}
    assert sample_of(0.0, infeasible, [], NODES, [], targets={"B200": 4}).capacity == 8
    assert sample_of(0.0, POOL, [], NODES, [], targets={"B200": 9}).capacity == 8


def test_several_routers_add_up_and_the_fresher_poll_counts() -> None:
    states = [
        state(view("uid-p-b200-0", in_flight=1, kv_used_tokens=11, last_poll_age_s=3)),
        state(view("uid-p-b200-0", in_flight=4, kv_used_tokens=22, last_poll_age_s=1)),
        state(view("uid-p-b200-0", in_flight=0, kv_used_tokens=33, last_poll_age_s=None)),
    ]
    sample = sample_of(0.0, POOL, [pod()], NODES, states)
    assert sample.in_flight == 5
    assert (sample.replicas[0].in_flight, sample.replicas[0].kv_used_tokens) == (5, 22)


def test_nothing_is_made_up_where_no_router_answers() -> None:
    sample = sample_of(0.0, {"metadata": {"name": "p"}}, [pod()], NODES, [])
    assert sample.in_flight is None
    assert sample.replicas[0].in_flight is None
    assert sample.types == ()
    assert sample.decided is None


@pytest.mark.parametrize(
    ("manifest", "nodes", "expected"),
    [
        (pod(), frozenset({"b200-1"}), State.LOST),
        (pod(metadata={"deletionTimestamp": "now"}), frozenset(), State.LOST),
        (pod(metadata={"deletionTimestamp": "now"}), NODES, State.ENDING),
        (pod(ready=False), NODES, State.STARTING),
        (pod(ready=False, node=""), NODES, State.STARTING),
        (pod(metadata={"annotations": {"sglpool.io/draining": "true"}}), NODES, State.DRAINING),
        (pod(metadata={"annotations": {"sglpool.io/draining": "false"}}), NODES, State.SERVING),
    ],
)
def test_states_of_a_replica(manifest: Manifest, nodes: frozenset[str], expected: State) -> None:
    assert sample_of(0.0, POOL, [manifest], nodes, []).replicas[0].state is expected


@pytest.mark.parametrize(
    ("healthy", "ready", "expected"),
    [
        ([False], True, State.SILENT),
        ([False, True], True, State.SERVING),
        ([], True, State.SERVING),
        ([False], False, State.STARTING),
    ],
)
def test_a_replica_is_silent_when_no_router_gets_an_answer(healthy: list[bool], ready: bool, expected: State) -> None:
    states = [state(view("uid-p-b200-0", healthy=each)) for each in healthy]
    assert sample_of(0.0, POOL, [pod(ready=ready)], NODES, states).replicas[0].state is expected


def test_routers_are_no_replicas() -> None:
    router = pod("p-router-x", metadata={"labels": {"app.kubernetes.io/component": "router"}})
    assert sample_of(0.0, POOL, [router, pod()], NODES, []).replicas[0].pod == "p-b200-0"


def test_ready_nodes_are_those_that_do_not_say_ready() -> None:
    def node(name: str, *conditions: Manifest) -> Manifest:
        return {"metadata": {"name": name}, "status": {"conditions": list(conditions)}}

    nodes = [
        node("a", {"type": "Ready", "status": "True"}),
        node("b", {"type": "Ready", "status": "Unknown"}),
        node("c"),
    ]
    assert ready_nodes(nodes) == {"a"}


@pytest.mark.parametrize(
    ("kind", "name", "reason", "told"),
    [
        ("InferencePool", "p", "Anything", True),
        ("InferencePool", "other", "Anything", False),
        ("Node", "b200-0", "NodeNotReady", True),
        ("Node", "b200-0", "RegisteredNode", False),
        ("Pod", "p-b200-0", "FailedScheduling", True),
        ("Pod", "p-b200-0", "Pulled", False),
        ("Pod", "q-b200-0", "FailedScheduling", False),
    ],
)
def test_events_that_belong_to_the_story(kind: str, name: str, reason: str, told: bool) -> None:
    assert tells({"involvedObject": {"kind": kind, "name": name}, "reason": reason}, "p") is told


def test_an_event_of_any_api_version() -> None:
    old = {
        "involvedObject": {"kind": "Node", "name": "n"},
        "reason": "R",
        "message": "M",
        "type": "Warning",
        "count": 3,
    }
    event = event_of(4.0, old)
    assert (event.at_s, event.about, event.reason, event.message, event.warning, event.count) == (
        4.0,
        "Node n",
        "R",
        "M",
        True,
        3,
    )
    new = {"involvedObject": {"kind": "Node", "name": "n"}, "reason": "R", "message": "M", "series": {"count": 5}}
    assert event_of(4.0, new | {"count": None}).count == 5
