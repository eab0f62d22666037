"""Rules of draining, one by one: when a marked replica may go, and which marks are set and removed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sglpool.api import names
from sglpool.plan import MarkPod, ReplicaLoad
from sglpool.plan.drain import (
    CAUSE_FEW_GPUS,
    CAUSE_SIZE,
    Leave,
    Moment,
    drained,
    kept_replicas,
    mark_steps,
    may_go,
    next_deadline_s,
)
from sglpool.plan.observed import ObservedPod
from support.observed import observed_pod

NOW_S, TIMEOUT_S = 10_000.0, 900.0
MARKED_S = NOW_S - 100
POD = observed_pod(3, draining=True, drain_deadline_s=MARKED_S + TIMEOUT_S)


def load(pod: ObservedPod = POD, **changes: object) -> ReplicaLoad:
    fields = {"idle_reads": 0, "in_flight": 2, "conversations": 5, "warm_tokens": 400_000, "age_s": 3.0, **changes}
    return ReplicaLoad(uid=pod.uid, **fields)  # type: ignore[arg-type]


IDLE = load(idle_reads=2, in_flight=0, conversations=0, warm_tokens=0)


def at(*loads: ReplicaLoad, now_s: float = NOW_S, routed: bool = True) -> Moment:
    return Moment(now_s=now_s, loads={each.uid: each for each in loads}, timeout_s=TIMEOUT_S, routed=routed)


DEADLINE_S = MARKED_S + TIMEOUT_S


@pytest.mark.parametrize(
    ("pod", "moment", "goes"),
    [
        pytest.param(POD, at(load()), False, id="busy"),
        pytest.param(POD, at(IDLE), True, id="idle on two reads"),
        pytest.param(POD, at(replace(IDLE, idle_reads=1)), False, id="idle on one read only"),
        pytest.param(POD, at(replace(IDLE, age_s=99.0)), False, id="idle as of before the mark"),
        pytest.param(POD, at(replace(IDLE, age_s=31.0)), False, id="idle by an old reading"),
        pytest.param(POD, at(replace(IDLE, age_s=-5.0)), False, id="a reading from the future"),
        pytest.param(replace(POD, drain_deadline_s=NOW_S - 1 + TIMEOUT_S), at(IDLE), False, id="read before the mark"),
        pytest.param(POD, at(load(), now_s=DEADLINE_S), True, id="busy at its deadline"),
        pytest.param(POD, at(now_s=DEADLINE_S - 1), False, id="unread before its deadline"),
        pytest.param(POD, at(now_s=DEADLINE_S, routed=False), True, id="unread at its deadline"),
        pytest.param(POD, at(now_s=DEADLINE_S), False, id="routers unreadable at its deadline"),
        pytest.param(POD, at(now_s=DEADLINE_S + TIMEOUT_S), True, id="routers unreadable for twice as long"),
        pytest.param(observed_pod(3), at(IDLE), False, id="idle and not marked"),
        pytest.param(observed_pod(3, drain_deadline_s=0.0), at(IDLE), False, id="a deadline without a mark"),
        pytest.param(replace(POD, drain_deadline_s=None), at(load()), False, id="a mark without a deadline"),
        pytest.param(replace(POD, ready=False), at(), True, id="not ready"),
        pytest.param(observed_pod(3, ready=False), at(), True, id="not ready, not marked"),
        pytest.param(replace(POD, ready=False), at(load()), False, id="not ready for a moment, streams under way"),
        pytest.param(replace(POD, ready=False), at(load(), now_s=DEADLINE_S), True, id="the same at its deadline"),
        pytest.param(replace(POD, ready=False, terminating=True), at(load()), True, id="terminating"),
        pytest.param(observed_pod(3, unproven="true"), at(load()), True, id="no traffic: unproven"),
        pytest.param(observed_pod(3, unproven="false"), at(IDLE), False, id="proven, so it has traffic"),
        pytest.param(observed_pod(3), replace(at(), loads=None), True, id="nobody reads loads"),
    ],
)
def test_a_replica_goes_when(pod, moment, goes):
    assert may_go(pod, moment) is goes


def test_marks_are_set_once_and_removed_when_the_reason_is_gone():
    fresh, marked, other = observed_pod(0), replace(POD, uid="marked"), replace(POD, uid="other")
    ending = observed_pod(2, uid="ending", ready=False, terminating=True)
    steps = mark_steps(
        [fresh, marked, other, ending], {p.uid: Leave(reason="why") for p in (fresh, marked, ending)}, at()
    )
    assert steps == [
        MarkPod(
            name=fresh.name,
            uid=fresh.uid,
            annotations={
                names.ANNOTATION_DRAINING: "true",
                names.ANNOTATION_DRAIN_DEADLINE: "10900",
                names.ANNOTATION_DRAIN_REASON: "why",
                names.ANNOTATION_DRAIN_CAUSE: None,
            },
            reason="why",
        ),
        MarkPod(
            name=other.name,
            uid="other",
            annotations=dict.fromkeys(
                (
                    names.ANNOTATION_DRAINING,
                    names.ANNOTATION_DRAIN_DEADLINE,
                    names.ANNOTATION_DRAIN_REASON,
                    names.ANNOTATION_DRAIN_CAUSE,
                )
            ),
            reason="it is wanted again",
        ),
    ]


@pytest.mark.parametrize("deadline_s", [None, NOW_S + TIMEOUT_S + 60, 10.0**14])
def test_a_deadline_that_cannot_be_right_is_set_anew(deadline_s):
    """A clock that was set back, a shorter drainTimeout, somebody's hand."""
    pod = replace(POD, drain_deadline_s=deadline_s)
    assert not may_go(pod, at(IDLE))
    [step] = mark_steps([pod], {pod.uid: Leave(reason="why")}, at())
    assert step.annotations[names.ANNOTATION_DRAIN_DEADLINE] == "10900"


def test_a_mark_whose_cause_changes_says_so_and_keeps_its_deadline():
    pod = replace(POD, drain_cause=CAUSE_SIZE)
    assert mark_steps([pod], {pod.uid: Leave(reason="why", cause=CAUSE_SIZE)}, at()) == []
    [step] = mark_steps([pod], {pod.uid: Leave(reason="a GPU less", cause=CAUSE_FEW_GPUS)}, at())
    assert step.annotations == {
        names.ANNOTATION_DRAIN_REASON: "a GPU less",
        names.ANNOTATION_DRAIN_CAUSE: CAUSE_FEW_GPUS,
    }


@pytest.mark.parametrize(
    ("causes", "kept"),
    [
        pytest.param(["", "", CAUSE_SIZE, CAUSE_SIZE], 2, id="the highest"),
        pytest.param(["", CAUSE_SIZE, "", CAUSE_SIZE], 3, id="one below another that stays"),
        pytest.param(["", "", "", CAUSE_FEW_GPUS], 4, id="for another reason: it comes back"),
        pytest.param([CAUSE_SIZE] * 4, 0, id="all"),
        pytest.param([], 4, id="no pods at all"),
    ],
)
def test_the_size_that_was_wanted_stands_on_the_marks(causes, kept):
    pods = [replace(POD, ordinal=ordinal, drain_cause=cause) for ordinal, cause in enumerate(causes)]
    assert kept_replicas(4, pods) == kept
    assert kept_replicas(4, [replace(pod, draining=False) for pod in pods]) == 4


@pytest.mark.parametrize("text", ["soon", "", "-1", "1e9", "nan", "9" * 400])
def test_a_deadline_that_is_no_number_of_seconds_is_none(text):
    metadata = {"name": "kimi-b200-0", "uid": "u", "annotations": {names.ANNOTATION_DRAIN_DEADLINE: text}}
    assert ObservedPod.from_manifest({"metadata": metadata, "spec": {}}).drain_deadline_s is None


def test_nothing_is_marked_where_nobody_reads_loads():
    blind = replace(at(), loads=None)
    assert mark_steps([observed_pod(0)], {"pod-B200-0": Leave(reason="why")}, blind) == []
    assert drained([POD], blind) is None


def test_what_goes_is_counted_as_far_as_it_was_read():
    other = observed_pod(4)
    unready = observed_pod(5, ready=False)
    counted = drained([POD, other, unready], at(load()))
    assert counted is not None
    assert (counted.pods, counted.conversations, counted.warm_tokens, counted.requests, counted.unread) == (
        (POD.name, other.name, unready.name),
        5,
        400_000,
        2,
        1,
    )


def test_time_alone_matters_at_the_deadline_and_once_more_after_it():
    assert next_deadline_s([observed_pod(0)], at()) is None
    assert next_deadline_s([POD, observed_pod(0)], at()) == TIMEOUT_S - 100
    assert next_deadline_s([POD], at(now_s=DEADLINE_S + 1)) == TIMEOUT_S - 1
    assert next_deadline_s([POD], at(now_s=DEADLINE_S + TIMEOUT_S)) is None
