"""What the planner reads from the API server's JSON."""

from __future__ import annotations

import pytest

from sglpool.api import names
from sglpool.plan import ObservedPod, ObservedStatefulSet, Refusal


def read(*, conditions=(), containers=(), init=(), **metadata) -> ObservedPod:
    return ObservedPod.from_manifest(
        {
            "metadata": {"name": "kimi-b200-3", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z", **metadata},
            "spec": {},
            "status": {
                "conditions": list(conditions),
                "containerStatuses": list(containers),
                "initContainerStatuses": list(init),
            },
        }
    )


def condition(kind: str, status: str, at: str = "2026-01-01T00:00:00Z", message: str = "") -> dict:
    return {"type": kind, "status": status, "lastTransitionTime": at, "message": message}


def test_a_pod_that_the_api_server_has_only_just_created():
    pod = ObservedPod.from_manifest({"metadata": {"name": "kimi-b200-3", "uid": "u"}, "spec": {}})
    assert (pod.ordinal, pod.ready, pod.node, pod.unschedulable, pod.restarts) == (3, False, "", "", 0)


def test_a_pod_that_goes_away_is_not_ready_whatever_its_condition_says():
    up = [condition("Ready", "True")]
    assert read(conditions=up).ready
    assert not read(conditions=up, deletionTimestamp="2026-01-01T00:00:00Z").ready


@pytest.mark.parametrize(
    ("conditions", "since"),
    [
        ([], "00:00"),
        # Waiting for a node is not starting.
        ([condition("PodScheduled", "True", "2026-01-01T05:00:00Z")], "05:00"),
        # A replica that ran for hours and restarts now has its whole time again.
        ([condition("PodScheduled", "True"), condition("Ready", "False", "2026-01-01T09:00:00Z")], "09:00"),
    ],
)
def test_the_clock_of_the_deadline_starts_when_the_pod_can_start(conditions, since):
    midnight = read().unready_since_s
    hours, _ = since.split(":")
    assert read(conditions=conditions).unready_since_s == midnight + int(hours) * 3600


def test_the_schedulers_words_count_only_while_there_is_no_node():
    assert read(conditions=[condition("PodScheduled", "False", message="no room")]).unschedulable == "no room"
    assert read(conditions=[condition("PodScheduled", "True", message="old words")]).unschedulable == ""


@pytest.mark.parametrize(("phase", "address"), [("Running", "10.0.0.7"), ("Pending", "10.0.0.7"), ("Failed", "")])
def test_the_address_of_a_pod_that_ended_may_be_anothers_by_now(phase, address):
    status = {"phase": phase, "podIP": "10.0.0.7"}
    metadata = {"name": "kimi-router-x", "uid": "u"}
    assert ObservedPod.from_manifest({"metadata": metadata, "spec": {}, "status": status}).address == address


def container(*, waiting: str = "", ended: dict | None = None, last: dict | None = None, restarts: int = 0) -> dict:
    state = {"waiting": {"reason": waiting}} if waiting else {"terminated": ended} if ended else {"running": {}}
    last_state = {"terminated": last} if last else {}
    return {"image": "example/engine:1", "state": state, "lastState": last_state, "restartCount": restarts}


def test_a_container_that_waits_for_its_turn_is_no_problem():
    init = [container(waiting="ErrImagePull")]
    assert read(init=init, containers=[container(waiting="PodInitializing")]).waiting == (
        "ErrImagePull",
        "example/engine:1",
    )
    assert read(containers=[container(waiting="ContainerCreating")]).waiting == ("", "")


def test_how_a_container_last_failed():
    killed = {"exitCode": 137, "reason": "OOMKilled"}
    pod = read(
        init=[container(ended={"exitCode": 0, "reason": "Completed"})],
        containers=[container(waiting="CrashLoopBackOff", last=killed, restarts=4)],
    )
    assert (pod.last_exit, pod.oom_killed, pod.restarts) == (137, True, 4)
    assert read(containers=[container(last={"exitCode": 0})]).last_exit is None


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("", ""),
        ("ValueError: no\nsglpool: the server ended before it was warm with exit code 1.\n", "ValueError: no"),
        ("sglpool: the disk is full.\n", "sglpool: the disk is full."),
        (
            "sglpool: the server ended while serving with exit code 0.",
            "sglpool: the server ended while serving with exit code 0.",
        ),
        ("x" * 300, "x" * 200 + "..."),
    ],
)
def test_what_a_container_said_last(message: str, words: str) -> None:
    assert read(containers=[container(last={"exitCode": 1, "message": message})]).last_words == words


def test_a_statefulset_with_everything_left_to_the_defaults_of_the_api():
    seen = ObservedStatefulSet.from_manifest({"metadata": {"name": "x", "uid": "u", "generation": 1}, "spec": {}})
    assert (seen.replicas, seen.partition, seen.pod_management_policy) == (1, 0, "OrderedReady")
    assert [seen.caught_up, seen.scale_owned, seen.adoptable] == [False, False, False]
    assert seen.hicache_bytes is None


def test_a_statefulset_of_ours():
    seen = ObservedStatefulSet.from_manifest(
        {
            "metadata": {
                "name": "kimi-b200",
                "uid": "u",
                "generation": 2,
                "annotations": {names.ANNOTATION_HICACHE_BYTES: "123", names.ANNOTATION_ADOPT: "true"},
                "managedFields": [{"manager": names.MANAGER_SCALE}],
                "ownerReferences": [{"uid": "friend"}, {"uid": "pool", "controller": True}],
            },
            "spec": {"replicas": 4, "updateStrategy": {"rollingUpdate": {"partition": 3}}},
            "status": {"observedGeneration": 2},
        }
    )
    assert (seen.replicas, seen.partition, seen.owner_uid, seen.hicache_bytes) == (4, 3, "pool", 123)
    assert seen.caught_up
    assert seen.scale_owned
    assert seen.adoptable


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ('pods "x" is forbidden: violates PodSecurity "restricted:latest": privileged', "PodSecurityRefused"),
        ('pods "x" is forbidden: exceeded quota: gpus', "QuotaExceeded"),
        ("admission webhook denied the request", "PodsRefused"),
    ],
)
def test_refusals_are_told_apart(message, kind):
    assert Refusal.from_message(message) == Refusal(kind, message)
