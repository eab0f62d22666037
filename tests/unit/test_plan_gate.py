"""The gate, one situation at a time: how far a revision is, what is due, who gets traffic, what the user is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sglpool.api import names
from sglpool.api.pool import Gate, Pool
from sglpool.plan import DeleteObject, MarkPod, Observed, ObservedPod, ObservedStatefulSet, RecordGate, StartGate
from sglpool.plan.gate import GateState, Stage, Word, gate_state, gate_steps, rollout_hold, stale_jobs, word_of
from sglpool.plan.surroundings import ObservedJob
from sglpool.render import gate_job_name
from support import pools
from support.observed import observed_pod, observed_statefulset

GATE = Gate(image="example/test:1")


def pool(*, word: str = "", gated: bool = True) -> Pool:
    rollout = {"gate": {"image": GATE.image}} if gated else {}
    annotations = {names.ANNOTATION_ROLLOUT: word} if word else {}
    return pools.pool(
        {"gpus": [{"type": "B200"}], "rollout": rollout}, metadata={"uid": "pool", "annotations": annotations}
    )


POOL = pool()
UNDER_TEST = observed_statefulset(replicas=2, partition=1, current="old", proven="old", gated="new")
OLD = observed_pod(0, revision="old")
RETURNED = observed_statefulset(replicas=1, current="old", update="old", proven="old", gated="new", returned_from="new")
NEW = observed_pod(1, revision="new", address="10.0.0.1", unproven="true")


def job(**changes: object) -> ObservedJob:
    fields = {
        "name": gate_job_name(POOL, GATE, "new"),
        "uid": "job",
        "owner_uid": "pool",
        "state": "Running",
        "message": "",
        "pod_uid": NEW.uid,
        "word": "",
        **changes,
    }
    return ObservedJob(**fields)  # type: ignore[arg-type]


def seen(current: ObservedStatefulSet, pods: list[ObservedPod], *jobs: ObservedJob) -> Observed:
    return Observed(statefulsets=(current,), pods=tuple(pods), jobs=jobs, refusals={})


def disrupted(attempt: int, **changes: object) -> ObservedJob:
    words = "PodFailurePolicy: Pod serving/x matching FailJob rule at index 0"
    name = gate_job_name(POOL, GATE, "new", attempt)
    return job(name=name, uid=f"job-{attempt}", state="Disrupted", message=words, **changes)


FAILED = job(state="Failed", message="BackoffLimitExceeded: Job has reached the specified backoff limit")


@pytest.mark.parametrize(
    ("of", "current", "pods", "jobs", "stage"),
    [
        pytest.param(pool(gated=False), UNDER_TEST, [OLD, NEW], [], Stage.OPEN, id="no gate"),
        pytest.param(POOL, replace(UNDER_TEST, proven="new"), [OLD, NEW], [], Stage.OPEN, id="proven"),
        pytest.param(POOL, replace(UNDER_TEST, gated=""), [OLD], [], Stage.NEW, id="a change"),
        pytest.param(POOL, replace(UNDER_TEST, gated="older"), [OLD], [], Stage.NEW, id="a change after another"),
        pytest.param(
            POOL, replace(UNDER_TEST, gated=""), [replace(NEW, unproven="")], [], Stage.SERVING, id="serves already"
        ),
        pytest.param(POOL, UNDER_TEST, [OLD], [], Stage.WAITING, id="on no replica yet"),
        pytest.param(POOL, UNDER_TEST, [OLD, replace(NEW, ready=False)], [], Stage.WAITING, id="not ready yet"),
        pytest.param(POOL, UNDER_TEST, [OLD, NEW], [], Stage.DUE, id="ready for its test"),
        pytest.param(POOL, UNDER_TEST, [OLD, NEW], [job(owner_uid="other")], Stage.DUE, id="somebody else's Job"),
        pytest.param(POOL, UNDER_TEST, [OLD, NEW], [job()], Stage.RUNNING, id="under test"),
        pytest.param(POOL, UNDER_TEST, [OLD], [job()], Stage.STALE, id="its replica is gone"),
        pytest.param(POOL, UNDER_TEST, [OLD], [job(state="Passed")], Stage.PASSED, id="passed"),
        pytest.param(POOL, UNDER_TEST, [OLD], [FAILED], Stage.FAILED, id="failed"),
        pytest.param(pool(word="pause"), UNDER_TEST, [OLD], [FAILED], Stage.FAILED, id="failed and paused"),
        pytest.param(pool(word="resume"), UNDER_TEST, [OLD], [FAILED], Stage.STALE, id="failed, asked again"),
        pytest.param(
            pool(word="resume"), UNDER_TEST, [OLD], [replace(FAILED, word="resume")], Stage.FAILED, id="failed again"
        ),
        pytest.param(POOL, UNDER_TEST, [OLD, NEW], [disrupted(1)], Stage.DUE, id="its pod was taken away"),
        pytest.param(POOL, UNDER_TEST, [OLD], [disrupted(2)], Stage.WAITING, id="the replica was taken away too"),
        pytest.param(POOL, UNDER_TEST, [OLD, NEW], [disrupted(3)], Stage.FAILED, id="taken away three times"),
        pytest.param(
            POOL,
            UNDER_TEST,
            [OLD, NEW],
            [disrupted(1), replace(job(), name=gate_job_name(POOL, GATE, "new", 2))],
            Stage.RUNNING,
            id="the second attempt runs",
        ),
        pytest.param(
            pool(word="resume"), UNDER_TEST, [OLD, NEW], [disrupted(3)], Stage.STALE, id="taken away, asked again"
        ),
        pytest.param(POOL, RETURNED, [OLD], [disrupted(3)], Stage.RETURNED, id="put back for want of an answer"),
        pytest.param(POOL, RETURNED, [OLD], [FAILED], Stage.RETURNED, id="failed, and the template is put back"),
        pytest.param(
            POOL,
            replace(RETURNED, update_revision="new", caught_up=False),
            [OLD],
            [FAILED],
            Stage.RETURNED,
            id="put back a moment ago",
        ),
        pytest.param(POOL, RETURNED, [OLD], [], Stage.OPEN, id="put back, and asked again"),
        pytest.param(
            pool(word="resume-2"), UNDER_TEST, [OLD], [replace(FAILED, word="resume")], Stage.STALE, id="a third time"
        ),
    ],
)
def test_how_far_a_revision_is(of, current, pods, jobs, stage):
    assert gate_state(of, current, seen(current, pods, *jobs)).stage is stage


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", Word.NOTHING),
        (" pause ", Word.PAUSE),
        ("abort", Word.ABORT),
        ("resume", Word.RESUME),
        ("resume-2026", Word.RESUME),
        ("unknown", Word.UNKNOWN),
        ("Pause", Word.UNKNOWN),
        ("resumed", Word.UNKNOWN),
    ],
)
def test_words_of_the_user(text, word):
    assert word_of(pool(word=text)) is word


def due(current: ObservedStatefulSet, pods: list[ObservedPod], *jobs: ObservedJob, of: Pool = POOL) -> list[object]:
    observed = seen(current, pods, *jobs)
    return [*gate_steps(of, current, gate_state(of, current, observed), observed)]


def test_what_a_revision_replaces_is_written_down_before_anything_moves():
    [record] = due(replace(UNDER_TEST, proven="", gated=""), [OLD])
    assert isinstance(record, RecordGate)
    assert (record.proven, record.gated) == ("old", "new")
    first = replace(UNDER_TEST, current_revision="new", proven="", gated="")
    [record] = due(first, [])
    assert isinstance(record, RecordGate)
    assert record.proven == names.PROVEN_NONE
    assert due(replace(first, caught_up=False), []) == []


def test_the_test_runs_against_the_replica_by_its_address():
    [start] = due(UNDER_TEST, [OLD, NEW])
    assert isinstance(start, StartGate)
    container = start.manifest["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "OPENAI_BASE_URL", "value": "http://10.0.0.1:30000/v1"} in container["env"]
    assert due(UNDER_TEST, [OLD, NEW], of=pool(word="abort")) == []
    assert due(UNDER_TEST, [OLD, replace(NEW, address="")]) == []


def test_a_test_whose_pod_was_taken_away_is_made_again_and_remembered_until_then():
    [start] = due(UNDER_TEST, [OLD, NEW], disrupted(1))
    assert isinstance(start, StartGate)
    assert start.manifest["metadata"]["name"] == gate_job_name(POOL, GATE, "new", 2)
    assert "attempt 2 of 3" in start.reason
    observed = seen(UNDER_TEST, [OLD, NEW], disrupted(1))
    assert stale_jobs(POOL, [gate_state(POOL, UNDER_TEST, observed)], observed) == []
    second = replace(job(), name=gate_job_name(POOL, GATE, "new", 2), uid="second")
    observed = seen(UNDER_TEST, [OLD, NEW], disrupted(1), second)
    steps = stale_jobs(POOL, [gate_state(POOL, UNDER_TEST, observed)], observed)
    assert [s.uid for s in steps if isinstance(s, DeleteObject)] == ["job-1"]
    assert due(UNDER_TEST, [OLD, NEW], disrupted(1), second) == []


def test_a_test_that_says_nothing_goes_and_one_that_passed_is_written_down():
    [gone] = due(UNDER_TEST, [OLD], job())
    assert isinstance(gone, DeleteObject)
    assert (gone.kind, gone.uid) == ("Job", "job")
    [record] = due(UNDER_TEST, [OLD, NEW], job(state="Passed"))
    assert isinstance(record, RecordGate)
    assert record.proven == "new"


@pytest.mark.parametrize(
    ("current", "pod", "of", "mark"),
    [
        (UNDER_TEST, replace(NEW, unproven="", ready=False), POOL, "true"),
        (replace(UNDER_TEST, proven="new"), NEW, POOL, "false"),
        (UNDER_TEST, NEW, pool(gated=False), "false"),
        (UNDER_TEST, OLD, POOL, None),
        (replace(UNDER_TEST, proven=names.PROVEN_NONE), OLD, POOL, "true"),
        # It never passed, and does not get traffic only because its successor did.
        (replace(UNDER_TEST, proven="new"), replace(OLD, unproven="true"), POOL, None),
        (replace(UNDER_TEST, proven="new"), replace(NEW, unproven=""), POOL, None),
        (UNDER_TEST, replace(NEW, unproven="", ready=False, terminating=True), POOL, None),
    ],
)
def test_who_gets_traffic(current, pod, of, mark):
    marks = [s.annotations for s in due(current, [pod], job(), of=of) if isinstance(s, MarkPod)]
    assert marks == ([{names.ANNOTATION_UNPROVEN: mark}] if mark else [])


def test_a_job_that_nobody_waits_for_is_deleted_and_a_strangers_is_not():
    other, strange = job(name="kimi-gate-other", uid="other"), job(name="kimi-gate-x", uid="x", owner_uid="y")
    observed = seen(UNDER_TEST, [OLD, NEW], job(), other, strange)
    steps = stale_jobs(POOL, [gate_state(POOL, UNDER_TEST, observed)], observed)
    assert [s.uid for s in steps if isinstance(s, DeleteObject)] == ["other"]


@pytest.mark.parametrize(
    ("state", "closed", "held", "goes_back"),
    [
        (GateState(), False, False, False),
        (GateState(stage=Stage.NEW), True, True, False),
        (GateState(stage=Stage.RUNNING), True, False, False),
        (GateState(stage=Stage.FAILED), True, True, True),
        (GateState(word=Word.PAUSE), False, True, False),
        (GateState(word=Word.UNKNOWN), False, True, False),
        (GateState(word=Word.ABORT), False, True, True),
        (GateState(word=Word.RESUME), False, False, False),
    ],
)
def test_what_follows_for_the_roll_out(state, closed, held, goes_back):
    assert (state.closed, state.held, state.goes_back) == (closed, held, goes_back)


@pytest.mark.parametrize(
    ("of", "current", "jobs", "reason", "words"),
    [
        (pool(word="stop"), UNDER_TEST, [], "RolloutUnknownWord", ["'stop'", "pause, resume or abort"]),
        (POOL, UNDER_TEST, [FAILED], "GateFailed", ["BackoffLimitExceeded", "returns to old", "kubectl logs job/"]),
        (POOL, replace(UNDER_TEST, current_revision="new"), [FAILED], "GateFailed", ["returns to old"]),
        (
            POOL,
            replace(UNDER_TEST, current_revision="new", proven=names.PROVEN_NONE),
            [FAILED],
            "GateFailed",
            ["no earlier revision"],
        ),
        (POOL, RETURNED, [FAILED], "GateFailed", ["new failed", "run old again"]),
        (pool(word="abort"), UNDER_TEST, [], "RolloutAborted", ["run old", "remove annotation"]),
        (pool(word="pause"), UNDER_TEST, [], "RolloutPaused", ["resume"]),
        (POOL, UNDER_TEST, [job()], "GateRunning", ["no traffic before it passes rollout.gate."]),
        (POOL, UNDER_TEST, [disrupted(2)], "GateRunning", ["lost its pod 2 of at most 3 times"]),
        (POOL, UNDER_TEST, [disrupted(3)], "GateFailed", ["its pod was taken away 3 times, at last: PodFailurePolicy"]),
        (pool(gated=False), UNDER_TEST, [], None, []),
        (pool(word="pause", gated=False), observed_statefulset(replicas=2), [], None, []),
        (pool(word="abort", gated=False), observed_statefulset(replicas=2), [], None, []),
    ],
)
def test_what_the_user_is_told(of, current, jobs, reason, words):
    hold = rollout_hold(of, seen(current, [OLD, NEW], *jobs))
    assert (hold.reason if hold else None) == reason
    assert all(word in hold.message for word in words if hold)


@pytest.mark.parametrize(
    ("conditions", "state", "message"),
    [
        ([], "Running", ""),
        ([{"type": "SuccessCriteriaMet", "status": "True"}], "Running", ""),
        ([{"type": "Complete", "status": "True"}], "Passed", ""),
        ([{"type": "Failed", "status": "False"}], "Running", ""),
        (
            [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "too long"}],
            "Failed",
            "DeadlineExceeded: too long",
        ),
        (
            [{"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": "rule at index 0"}],
            "Disrupted",
            "PodFailurePolicy: rule at index 0",
        ),
    ],
)
def test_what_became_of_a_job(conditions, state, message):
    seen_job = ObservedJob.from_manifest({"metadata": {"name": "j", "uid": "u"}, "status": {"conditions": conditions}})
    assert (seen_job.state, seen_job.message) == (state, message)
