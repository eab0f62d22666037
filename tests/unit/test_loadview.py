"""Who is asked about a pool, and what the autoscaler and the status take from the answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sglpool.api import names
from sglpool.controller.loadview import (
    FIRST_POLL_S,
    ROUTER_PATIENCE_S,
    Subject,
    engines_of,
    load_of,
    signals_of,
    target_of,
)
from sglpool.plan import Observed
from support import pools
from support.observed import observed_pod, observed_statefulset
from support.ticks import NOW_S, autoscaled, reading, replica


def subject(**changes: Any) -> Subject:
    pool = autoscaled()
    return replace(Subject.of(pool, pools.size(pool)), uid="pool", **changes)


def observed(*pods: Any, routers: tuple[Any, ...] = ()) -> Observed:
    return Observed(
        statefulsets=(observed_statefulset(replicas=3),), pods=tuple(pods), router_pods=tuple(routers), refusals={}
    )


def router(name: str, **changes: Any) -> Any:
    fields = {"component": names.COMPONENT_ROUTER, "address": "10.0.0.9", "gpu_type": "", **changes}
    return replace(observed_pod(0), name=name, uid=name, **fields)


def test_who_is_asked_and_whose_silence_matters():
    routers = (
        router("ready"),
        router("new", address=""),
        router("store", component=names.COMPONENT_STORE),
        router("leaving", ready=False, terminating=True),
        router("unready", ready=False, unready_since_s=NOW_S - 10),
        router("broken", ready=False, unready_since_s=NOW_S - ROUTER_PATIENCE_S),
    )
    now = observed(observed_pod(0), routers=routers)
    target = target_of(subject(), now, engines_of(now), now_s=NOW_S)
    assert {each.name: each.required for each in target.routers} == {
        "ready": True,
        "leaving": True,
        "unready": True,
        "broken": False,
    }


def test_the_autoscaler_is_asked_about_every_ready_replica_read_or_not():
    pods = (
        observed_pod(0),
        observed_pod(1),
        observed_pod(2, ready=False, unready_since_s=5.0, node="", unschedulable="no room"),
        observed_pod(3, ready=False, terminating=True),
        observed_pod(4, owner_uid="somebody else"),
    )
    found = reading(3.0, replicas={"pod-B200-0": replica(in_flight=3, age_s=1.0)})
    asked = signals_of(subject(), observed(*pods), found, now_s=NOW_S, waited_s=2.0, scaled=lambda s: s * 10)
    assert [(one.uid, one.age_s, one.running) for one in asked.replicas] == [
        ("pod-B200-0", 3.0, 3.0),
        ("pod-B200-1", None, 0.0),
    ]
    (state,) = asked.types
    assert (state.replicas, state.ready) == (3, 2)
    (starting,) = state.starting
    assert (starting.ordinal, starting.since_s, starting.unschedulable_since_s) == (2, 50.0, 50.0)
    assert (asked.in_flight, asked.age_s, asked.has_router) == (3.0, 2.0, True)


@pytest.mark.parametrize(
    ("ready_for_s", "read", "ready"), [(1.0, False, 0), (1.0, True, 1), (FIRST_POLL_S, False, 1), (-30.0, False, 1)]
)
def test_a_replica_that_was_not_polled_yet_still_starts(ready_for_s, read, ready):
    pod = observed_pod(0, unready_since_s=NOW_S - ready_for_s)
    found = reading(replicas={pod.uid: replica()} if read else {})
    asked = signals_of(subject(), observed(pod), found, now_s=NOW_S, waited_s=0.0, scaled=lambda s: s)
    assert (asked.types[0].ready, len(asked.types[0].starting), len(asked.replicas)) == (ready, 1 - ready, ready)


@pytest.mark.parametrize(("unproven", "serves"), [("true", False), ("false", True), ("", True)])
def test_a_replica_under_a_gate_gets_no_traffic_and_is_no_capacity(unproven: str, serves: bool):
    pods = (observed_pod(0), observed_pod(1, unproven=unproven, unready_since_s=NOW_S - 300))
    found = reading(3.0, replicas={pod.uid: replica(in_flight=1, queued=2) for pod in pods})
    asked = signals_of(subject(), observed(*pods), found, now_s=NOW_S, waited_s=0.0, scaled=lambda s: s)
    (state,) = asked.types
    assert (state.ready, len(asked.replicas), asked.queued) == ((2, 2, 4) if serves else (1, 1, 2))
    if not serves:
        (starting,) = state.starting
        assert (starting.uid, starting.ready, starting.since_s) == (pods[1].uid, True, NOW_S - 300)


def test_the_sum_over_some_routers_is_not_the_pools_load():
    partial = reading(3.0, routers_read=1, routers_known=2)
    assert load_of(subject(), observed(), partial).running_requests is None
    assert load_of(subject(), observed(), reading(3.0)).running_requests == 3


def test_without_a_router_the_load_is_that_of_ready_replicas():
    pods = (observed_pod(0), observed_pod(1, ready=False))
    both = {"pod-B200-0": replica(in_flight=2, kv_used_tokens=500), "pod-B200-1": replica(in_flight=9)}
    found = load_of(subject(routed=False), observed(*pods), reading(11.0, replicas=both))
    assert (found.running_requests, found.kv_utilization_percent) == (2, 50)
    asked = signals_of(
        subject(routed=False), observed(*pods), reading(11.0), now_s=NOW_S, waited_s=0.0, scaled=lambda s: s
    )
    assert (asked.in_flight, asked.has_router) == (None, False)
