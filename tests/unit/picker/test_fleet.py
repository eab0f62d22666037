"""From pods to replicas and to Envoy's endpoint file."""

from __future__ import annotations

from typing import Any

import pytest

from sglpool.picker.fleet import MISSED_POLLS, Fleet
from sglpool.picker.pods import view
from unit.picker.parts import key, make_fleet, picked, pod

ADDRESS = "10.0.0.1:30000"


def health(fleet: Fleet) -> dict[str, str]:
    found = {}
    for entry in fleet.endpoints()["resources"][0]["endpoints"][0]["lb_endpoints"]:
        place = entry["endpoint"]["address"]["socket_address"]
        found[f"{place['address']}:{place['port_value']}"] = entry["health_status"]
    return found


def test_a_ready_pod_is_a_replica_with_its_type_s_weight():
    fleet, ledger, asked = make_fleet(weights={"B200": 1.5}, max_concurrent_requests=9)
    fleet.put(pod())
    replica = ledger.replicas["u1"]
    assert (replica.address, replica.weight, replica.max_concurrent) == (ADDRESS, 1.5, 9)
    assert replica.ready_since_s == 1000.0
    assert health(fleet) == {ADDRESS: "HEALTHY"}
    assert asked


@pytest.mark.parametrize(
    ("changes", "healthy", "endpoint"),
    [
        ({}, True, "HEALTHY"),
        ({"draining": True}, True, "DRAINING"),
        ({"terminating": True}, False, "DRAINING"),
        ({"unproven": True}, True, None),
    ],
)
def test_what_a_pod_s_state_means(changes, healthy, endpoint):
    fleet, ledger, _ = make_fleet()
    fleet.put(pod(**changes))
    assert ledger.replicas["u1"].healthy is healthy
    assert health(fleet).get(ADDRESS) == endpoint


def test_a_revision_is_unproven_from_its_first_marked_pod_until_one_of_it_is_proven():
    """Pods that are made anew or added while the operator is away are marked by nobody."""
    fleet, ledger, asked = make_fleet()
    fleet.put(pod("old", ip="10.0.0.1", revision="r1"))
    fleet.put(pod("first", ip="", revision="r2", unproven=True, ready=False, ready_since_s=None))
    fleet.put(pod("added", ip="10.0.0.2", revision="r2"))
    fleet.gone("first")
    fleet.put(pod("again", ip="10.0.0.3", revision="r2"))
    assert health(fleet) == {"10.0.0.1:30000": "HEALTHY"}
    assert {uid: r.proven for uid, r in ledger.replicas.items()} == {"old": True, "added": False, "again": False}
    before = len(asked)
    fleet.put(pod("again", ip="10.0.0.3", revision="r2", proven=True))
    assert len(asked) > before
    fleet.put(pod("late", ip="10.0.0.4", revision="r2", unproven=True))
    assert {uid: r.proven for uid, r in ledger.replicas.items()} == {
        "old": True,
        "added": True,
        "again": True,
        "late": False,
    }


@pytest.mark.parametrize("turned", [False, True])
def test_a_picker_that_starts_anew_learns_from_marks_which_revisions_are_unproven(turned):
    fleet, ledger, _ = make_fleet()
    marked = [
        pod("a", ip="10.0.0.1", revision="r2", unproven=True),
        pod("b", ip="10.0.0.2", revision="r2"),
        pod("c", ip="10.0.0.3", revision="r3", unproven=True),
        pod("d", ip="10.0.0.4", revision="r3", proven=True),
        pod("e", ip="10.0.0.5", revision="r3"),
    ]
    fleet.sync(marked[::-1] if turned else marked)
    assert {uid for uid, r in ledger.replicas.items() if r.proven} == {"d", "e"}


def test_a_pod_that_was_never_ready_is_no_endpoint_and_one_that_was_is_kept_for_its_streams():
    fleet, ledger, _ = make_fleet()
    fleet.put(pod(ready=False, ready_since_s=None))
    assert health(fleet) == {}
    assert not ledger.replicas["u1"].healthy
    fleet.put(pod())
    fleet.put(pod(ready=False, ready_since_s=None))
    assert health(fleet) == {ADDRESS: "DRAINING"}
    fleet.put(pod(ready_since_s=5000.0))
    assert ledger.replicas["u1"].ready_since_s == 1000.0, "a missed probe is no new start"


def test_a_restarted_engine_is_another_replica():
    fleet, ledger, _ = make_fleet()
    fleet.put(pod())
    picked(ledger.pick(key(1), {}))
    fleet.put(pod(restarts=1, ready=False, ready_since_s=None))
    fleet.put(pod(restarts=1, ready_since_s=9000.0))
    assert list(ledger.replicas) == ["u1.1"]
    assert ledger.replicas["u1.1"].ready_since_s == 9000.0
    assert picked(ledger.pick(key(1), {})).decision.rule == "failover"


def test_a_pod_without_address_or_that_is_over_is_no_replica():
    fleet, ledger, _ = make_fleet()
    fleet.put(pod(ip=""))
    assert not ledger.replicas
    fleet.put(pod())
    fleet.put(pod(over=True))
    assert not ledger.replicas


def test_an_address_belongs_to_the_pod_that_has_it_now():
    fleet, ledger, _ = make_fleet()
    fleet.put(pod("old"))
    fleet.put(pod("new", terminating=False))
    assert ledger.uid_at(ADDRESS) == "new"
    fleet.gone("old")
    assert ledger.uid_at(ADDRESS) == "new"
    fleet.gone("new")
    assert ledger.uid_at(ADDRESS) is None


def test_a_list_removes_what_is_not_in_it():
    fleet, ledger, _ = make_fleet()
    for uid, number in (("a", 1), ("b", 2)):
        fleet.put(pod(uid, f"10.0.0.{number}"))
    fleet.put(pod("r", component="router", ip="10.0.1.1"))
    fleet.sync([pod("b", "10.0.0.2"), pod("r2", component="router", ip="10.0.1.2")])
    assert list(ledger.replicas) == ["b"]
    assert [router.uid for router in fleet.siblings("r")] == ["r2"]
    assert fleet.siblings("r2") == []


def test_missed_polls_take_a_replica_out_and_one_answer_brings_it_back():
    fleet, ledger, asked = make_fleet()
    fleet.put(pod())
    member = fleet.members["u1"]
    for _ in range(MISSED_POLLS):
        assert ledger.replicas["u1"].healthy
        fleet.missed(member, dead=False)
    assert not ledger.replicas["u1"].healthy
    assert health(fleet) == {ADDRESS: "DRAINING"}
    asked.clear()
    fleet.answered(member)
    assert ledger.replicas["u1"].healthy
    assert asked
    fleet.missed(member, dead=True)
    assert not ledger.replicas["u1"].healthy, "nobody listens there: once is enough"


def test_a_full_replica_is_marked_until_there_is_real_room():
    fleet, ledger, _ = make_fleet(max_concurrent_requests=10)
    fleet.put(pod())
    replica = ledger.replicas["u1"]
    seen = []
    for count in (9, 10, 9, 8, 7):
        replica.own_in_flight = count
        fleet.mark_full()
        seen.append(health(fleet)[ADDRESS])
    assert seen == ["HEALTHY", "DRAINING", "DRAINING", "DRAINING", "HEALTHY"]


def test_ipv6_is_written_as_envoy_wants_it():
    fleet, ledger, _ = make_fleet()
    fleet.put(pod(ip="fd00::1"))
    assert ledger.replicas["u1"].address == "[fd00::1]:30000"
    place = fleet.endpoints()["resources"][0]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]
    assert place["socket_address"] == {"address": "fd00::1", "port_value": 30000}


def manifest(**changes: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "p-b200-0",
            "uid": "u1",
            "labels": {"app.kubernetes.io/component": "engine", "sglpool.io/gpu-type": "B200"},
            "annotations": {"sglpool.io/draining": "true", "sglpool.io/drain-deadline": "1800000000"},
            **changes,
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            "containerStatuses": [{"name": "engine", "restartCount": 2}, {"name": "other", "restartCount": 9}],
        },
    }


def test_a_pod_is_read_as_the_api_gives_it():
    seen = view(manifest())
    assert (seen.uid, seen.name, seen.component, seen.ip, seen.gpu) == ("u1", "p-b200-0", "engine", "10.0.0.1", "B200")
    assert (seen.ready, seen.ready_since_s, seen.restarts) == (True, 1767225600.0, 2)
    assert (seen.draining, seen.drain_deadline_s, seen.terminating) == (True, 1_800_000_000.0, False)
    assert view(manifest(deletionTimestamp="2026-01-01T00:00:00Z")).terminating


@pytest.mark.parametrize("deadline", ["", "soon", None])
def test_a_deadline_that_is_no_number_is_no_hurry(deadline):
    annotations = {"sglpool.io/draining": "true", "sglpool.io/drain-deadline": deadline}
    assert view(manifest(annotations=annotations)).drain_deadline_s is None


def test_a_bare_pod_is_not_ready():
    seen = view({"metadata": {"name": "a", "uid": "b"}})
    assert (seen.ready, seen.ip, seen.component, seen.restarts) == (False, "", "", 0)


def test_who_knows_most_of_the_other_routers_comes_first():
    fleet, _, _ = make_fleet()
    for uid, changes in {
        "own": {},
        "starting": {"ready": False, "ready_since_s": None},
        "going": {"ready": False, "ready_since_s": None, "terminating": True},
        "young": {"ready_since_s": 2000.0},
        "old": {"ready_since_s": 1000.0},
        "ended": {"over": True},
        "nowhere": {"ip": ""},
    }.items():
        fleet.put(pod(uid, component="router", **changes))
    assert [sibling.uid for sibling in fleet.siblings("own")] == ["old", "young", "going", "starting"]
