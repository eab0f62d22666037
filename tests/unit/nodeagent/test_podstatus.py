"""The status of a pod from the records of its containers: phases, conditions, transition times, QoS class."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglpool.sandbox.nodeagent.podstatus import PodFacts, pod_status, qos_class
from sglpool.sandbox.nodeagent.records import ContainerRecord, Role, Running, State, Terminated, Waiting, records_of
from unit.nodeagent.fakes import pod

NOW = datetime(2030, 1, 1, tzinfo=UTC)
CREATING = Waiting("ContainerCreating")
CRASHING = Waiting("CrashLoopBackOff", "back-off 10s")
RUNS = Running(NOW)


def _ended(code: int) -> Terminated:
    return Terminated(exit_code=code, reason="", started_at=NOW, finished_at=NOW)


DONE, FAILED = _ended(0), _ended(1)


def _record(name: str, state: State, *, role: Role = "main", last: Terminated | None = None) -> ContainerRecord:
    up = isinstance(state, Running)
    return ContainerRecord(
        name=name, role=role, image=name, state=state, last=last, ran=state != CREATING, started=up, probed_ready=up
    )


def _facts(*, over: bool = False) -> PodFacts:
    return PodFacts(pod_ip="127.1.0.5", host_ip="127.1.0.1", start_time=NOW, prepared=True, over=over)


def _phase(policy: str, records: list[ContainerRecord], *, over: bool = False) -> str:
    status = pod_status(pod(policy=policy), records, _facts(over=over), previous={}, now=NOW)
    return str(status["phase"])


@pytest.mark.parametrize(
    ("policy", "states", "over", "phase"),
    [
        ("Always", [CREATING], False, "Pending"),
        ("Always", [RUNS], False, "Running"),
        ("Always", [RUNS, CREATING], False, "Pending"),
        ("Always", [DONE], False, "Running"),
        ("Never", [DONE, RUNS], False, "Running"),
        ("Never", [FAILED, RUNS], False, "Running"),
        ("Never", [DONE, DONE], True, "Succeeded"),
        ("Never", [DONE, FAILED], True, "Failed"),
        ("Always", [DONE], True, "Succeeded"),
        ("Always", [CREATING], True, "Failed"),
    ],
)
def test_phases_of_containers(policy: str, states: list[State], over: bool, phase: str) -> None:
    records = [_record(f"c{index}", state) for index, state in enumerate(states)]
    assert _phase(policy, records, over=over) == phase


@pytest.mark.parametrize(
    ("policy", "init", "last", "main", "phase"),
    [
        ("Always", RUNS, None, CREATING, "Pending"),
        ("Always", CRASHING, FAILED, CREATING, "Pending"),
        ("Never", FAILED, None, CREATING, "Failed"),
        ("Always", DONE, None, RUNS, "Running"),
        # After a reboot: everything has run before, and the init container runs again.
        ("Always", RUNS, DONE, Waiting("PodInitializing"), "Pending"),
    ],
)
def test_phases_of_init_containers(policy: str, init: State, last: Terminated | None, main: State, phase: str) -> None:
    assert _phase(policy, [_record("i", init, role="init", last=last), _record("m", main)]) == phase


def test_a_container_between_two_runs_does_not_make_the_pod_pending() -> None:
    assert _phase("Always", [_record("m", CRASHING, last=FAILED)]) == "Running"


def test_a_sidecar_that_has_not_started_keeps_the_pod_pending_only_before_the_others_began() -> None:
    side = _record("s", RUNS, role="sidecar")
    side.started = False
    assert _phase("Always", [side, _record("m", CREATING)]) == "Pending"
    assert _phase("Always", [side, _record("m", RUNS)]) == "Running"


def test_a_final_phase_stays() -> None:
    status = pod_status(pod(), [_record("m", RUNS)], _facts(), previous={"phase": "Failed"}, now=NOW)
    assert status["phase"] == "Failed"


def test_a_killed_container_shows_all_that_is_known() -> None:
    end = Terminated(
        exit_code=137,
        reason="OOMKilled",
        started_at=NOW,
        finished_at=NOW + timedelta(seconds=5),
        signal=9,
        message="too much",
        container_id="sandbox://x",
    )
    status = pod_status(pod(), [_record("m", end)], _facts(), previous={}, now=NOW)
    assert status["containerStatuses"][0]["state"]["terminated"] == {
        "exitCode": 137,
        "signal": 9,
        "reason": "OOMKilled",
        "message": "too much",
        "startedAt": "2030-01-01T00:00:00Z",
        "finishedAt": "2030-01-01T00:00:05Z",
        "containerID": "sandbox://x",
    }


_STATES = st.sampled_from([CREATING, CRASHING, RUNS, DONE, FAILED])


@given(st.lists(_STATES, min_size=2, max_size=8), st.sampled_from(["Always", "OnFailure", "Never"]))
def test_conditions_are_of_one_mind_and_change_their_time_only_with_their_status(
    states: list[State], policy: str
) -> None:
    previous: dict[str, Any] = {}
    for second, (one, two) in enumerate(itertools.pairwise(states)):
        now = NOW + timedelta(seconds=second)
        records = [_record("a", one, last=FAILED if one is CRASHING else None), _record("b", two)]
        status = pod_status(pod(policy=policy), records, _facts(), previous=previous, now=now)
        conditions = {c["type"]: c for c in status["conditions"]}
        assert conditions["Ready"]["status"] == conditions["ContainersReady"]["status"]
        ready = conditions["Ready"]["status"] == "True"
        assert ready == all(entry["ready"] for entry in status["containerStatuses"])
        assert not ready or status["phase"] == "Running"
        for old in previous.get("conditions", ()):
            new = conditions[old["type"]]
            kept = new["lastTransitionTime"] == old["lastTransitionTime"]
            assert kept == (new["status"] == old["status"])
        previous = status


@given(st.lists(_STATES, min_size=1, max_size=3), st.sampled_from(["Always", "OnFailure", "Never"]))
def test_records_read_from_a_status_never_run_and_never_lose_a_restart(states: list[State], policy: str) -> None:
    names = [f"c{index}" for index in range(len(states))]
    written = pod(mains=names, policy=policy)
    records = [_record(name, state) for name, state in zip(names, states, strict=True)]
    for index, record in enumerate(records):
        record.restarts, record.container_id = index, f"sandbox://{index}" if record.ran else ""
    written["status"] = pod_status(written, records, _facts(), previous={}, now=NOW)
    for before, after in zip(records, records_of(written, now=NOW), strict=True):
        assert not isinstance(after.state, Running)
        assert (after.restarts, after.ran) == (before.restarts, before.ran)
        if isinstance(before.state, Running | Terminated):
            assert after.last or isinstance(after.state, Terminated)
        if policy == "Always":
            assert isinstance(after.state, Waiting)


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ([{}], "BestEffort"),
        ([{"limits": {"nvidia.com/gpu": 4}}], "BestEffort"),
        ([{"requests": {"cpu": "1"}}], "Burstable"),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}}], "Guaranteed"),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}}], "Guaranteed"),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}}, {}], "Burstable"),
    ],
)
def test_the_quality_of_service_class(resources: list[dict[str, Any]], expected: str) -> None:
    assert qos_class({"containers": [{"name": "c", "resources": r} for r in resources]}) == expected
