"""What a user is told as Events: one for each thing that happened, with its figures."""

from __future__ import annotations

from sglpool.api import names
from sglpool.controller.story import Note, notes_of
from sglpool.plan import DeleteObject, MarkPod, Scale, Step
from sglpool.plan.drain import ReplicaLoad
from sglpool.plan.steps import Drained


def mark(ordinal: int, *, on: bool = True, reason: str = "3 replicas are wanted") -> MarkPod:
    marks = {names.ANNOTATION_DRAINING: "true", names.ANNOTATION_DRAIN_DEADLINE: "1800"} if on else {}
    empty = {names.ANNOTATION_DRAINING: None, names.ANNOTATION_DRAIN_DEADLINE: None}
    return MarkPod(name=f"kimi-b200-{ordinal}", uid=f"u{ordinal}", annotations={**empty, **marks}, reason=reason)


def load(uid: str, **changes: int) -> ReplicaLoad:
    fields = {"idle_reads": 0, "in_flight": 2, "conversations": 7, "warm_tokens": 1000, **changes}
    return ReplicaLoad(uid=uid, age_s=1.0, **fields)


def notes(*done: Step, loads: dict[str, ReplicaLoad] | None = None) -> list[Note]:
    return notes_of({}, {}, done, loads or {})


def test_growth_is_told_with_the_decision():
    stored = {"autoscaling": {"desired": 2}}
    status = {"autoscaling": {"desired": 4, "reason": "LoadAboveTarget", "message": "17 requests in flight."}}
    (note,) = notes_of(stored, status, (), {})
    assert note == Note(
        reason="ScaledUp", message="From 2 to 4 replicas, LoadAboveTarget: 17 requests in flight.", action="Scale"
    )
    assert notes_of(status, status, (), {}) == []
    assert notes_of({}, status, (), {}) == [], "the first size is no growth"
    assert notes_of(status, stored, (), {}) == [], "a smaller size is told when replicas are emptied, and when they go"


def test_replicas_that_are_emptied_for_one_reason_are_one_event():
    (note,) = notes(mark(3), mark(4), loads={"u3": load("u3"), "u4": load("u4", in_flight=0, conversations=1)})
    assert note == Note(
        reason="DrainStarted",
        message="kimi-b200-3, kimi-b200-4: 3 replicas are wanted. 2 requests and 8 conversations are there.",
        action="Drain",
    )


def test_many_are_counted_and_unread_ones_get_no_figures():
    (note,) = notes(*(mark(ordinal) for ordinal in range(9)))
    assert note.message == "kimi-b200-0, kimi-b200-1, kimi-b200-2 and 6 more: 3 replicas are wanted."
    other = notes(mark(1), mark(2, reason="its node is cordoned"))
    assert [n.message.partition(": ")[2] for n in other] == ["3 replicas are wanted.", "its node is cordoned."]


def test_load_that_returns_cancels_and_is_told():
    (note,) = notes(mark(3, on=False, reason="it is wanted again"))
    assert (note.reason, note.message) == ("DrainCancelled", "kimi-b200-3: wanted again.")


def test_what_went_is_told_with_what_it_cost():
    went = Drained(pods=("kimi-b200-3",), conversations=1, warm_tokens=123456, requests=0, unread=0)
    (note,) = notes(Scale(name="kimi-b200", replicas=3, partition=0, reason="", drained=went))
    assert note == Note(
        reason="ScaledDown",
        message="kimi-b200 to 3: kimi-b200-3 with 1 conversation left, 123,456 warm tokens dropped, 0 requests cut.",
        action="Scale",
    )
    busy = Drained(pods=("a",), conversations=2, warm_tokens=9, requests=3, unread=0)
    (note,) = notes(Scale(name="kimi-b200", replicas=3, partition=0, reason="", drained=busy))
    assert note.message.endswith("9 warm tokens dropped, 3 requests cut unless over within 120 s.")
    unread = Drained(pods=("a", "b"), conversations=0, warm_tokens=0, requests=0, unread=2)
    (note,) = notes(DeleteObject(kind="Pod", name="a", uid="u", reason="its node is lost", drained=unread))
    assert note.reason == "ReplicaReplaced"
    assert note.message.startswith("its node is lost: a, b with 0 conversations left")
    assert note.message.endswith("0 requests cut, nothing known of 2 replicas.")


def test_other_steps_are_no_story():
    other = MarkPod(name="a", uid="u", annotations={names.ANNOTATION_UNPROVEN: "true"}, reason="gate")
    assert notes(Scale(name="kimi-b200", replicas=3, partition=0, reason="grows"), other) == []
