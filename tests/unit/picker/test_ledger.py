"""Slots are counted once, given back once, and never leak."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglpool.picker import pickid
from sglpool.picker.ledger import LAPSE_S, Refused, length_of
from sglpool.routing.types import ConversationKey
from unit.picker.parts import Clock, ended, key, make_ledger, picked


def own(ledger) -> list[int]:  # type: ignore[no-untyped-def]
    return [replica.own_in_flight for replica in ledger.replicas.values()]


def test_a_pick_takes_a_slot_and_its_end_gives_it_back():
    ledger = make_ledger()
    pick = picked(ledger.pick(key(1), {"x-sglpool-length": "4000"}))
    assert sum(own(ledger)) == 1
    home, second = pick.destination.split(",")
    assert home != second
    assert ledger.ended(ended(pick)) == key(1)
    assert own(ledger) == [0, 0]
    assert not ledger.reservations


def test_the_same_line_twice_gives_back_one_slot():
    ledger = make_ledger(1)
    one, _ = picked(ledger.pick(key(1), {})), picked(ledger.pick(key(2), {}))
    ledger.ended(ended(one))
    ledger.ended(ended(one))
    assert own(ledger) == [1]


def test_full_replicas_refuse_and_no_replica_has_no_opinion():
    ledger = make_ledger(1, max_concurrent=1)
    picked(ledger.pick(key(1), {}))
    assert isinstance(ledger.pick(key(2), {}), Refused)
    assert isinstance(ledger.pick(key(2), {}), Refused)
    assert ledger.refused_conversations() == 1
    ledger.clock_s.now_s += 61  # type: ignore[attr-defined]
    assert ledger.refused_conversations() == 0
    assert make_ledger(0).pick(key(1), {}) is None


def test_a_reservation_that_envoy_never_shows_lapses_after_two_answers_and_five_seconds():
    clock = Clock()
    ledger = make_ledger(1, clock=clock)
    picked(ledger.pick(key(1), {}))
    for _ in range(3):
        clock.now_s += 1
        ledger.confirm({}, clock.now_s)
    assert own(ledger) == [1], "a request may take its time on its way"
    clock.now_s += LAPSE_S
    ledger.confirm({}, clock.now_s)
    assert own(ledger) == [0]
    assert not ledger.reservations


def test_a_reservation_that_envoy_shows_stays_however_old():
    clock = Clock()
    ledger = make_ledger(1, clock=clock)
    picked(ledger.pick(key(1), {}))
    for _ in range(100):
        clock.now_s += 10
        ledger.confirm({"10.0.0.1:30000": 1}, clock.now_s)
    assert own(ledger) == [1]


def test_what_envoy_placed_itself_counts_once_two_answers_say_so():
    clock = Clock()
    ledger = make_ledger(1, clock=clock)
    ledger.confirm({"10.0.0.1:30000": 3}, clock.now_s)
    assert own(ledger) == [0], "one answer may be a matter of timing"
    ledger.confirm({"10.0.0.1:30000": 2}, clock.now_s)
    assert own(ledger) == [2]
    picked(ledger.pick(key(1), {}))
    assert own(ledger) == [3]
    ledger.confirm({}, clock.now_s)
    ledger.confirm({}, clock.now_s)
    assert own(ledger) == [1]


def test_an_answer_that_is_older_than_a_pick_says_nothing_about_it():
    clock = Clock()
    ledger = make_ledger(1, clock=clock)
    asked_s = clock.now_s
    clock.now_s += 10
    picked(ledger.pick(key(1), {}))
    for _ in range(3):
        ledger.confirm({}, asked_s)
    assert own(ledger) == [1]


def test_a_request_that_a_second_host_served_marks_the_first():
    ledger = make_ledger()
    pick = picked(ledger.pick(key(1), {}))
    second = pick.destination.split(",")[1]
    ledger.ended(ended(pick, upstream=second, attempts=2))
    home = pick.decision.home
    assert home is not None
    assert ledger.replicas[home].refused
    assert own(ledger) == [0, 0]


def test_a_process_that_starts_learns_homes_from_picks_of_the_one_before():
    before, after = make_ledger(), make_ledger()
    pick = picked(before.pick(key(1), {"x-sglpool-length": "4000"}))
    after.ended(ended(pick))
    known = after.state.get(key(1))
    assert known is not None
    assert known.home == pick.decision.home
    assert known.ctx_tokens == 1010
    assert own(after) == [0, 0], "it never took that slot"


def test_a_known_home_is_not_changed_by_such_a_line():
    before, after = make_ledger(), make_ledger()
    pick = picked(before.pick(key(1), {}))
    (other,) = {"e1", "e2"} - {pick.decision.home}
    after.state.set_home(after.state.touch(key(1), after.clock_s()), other)
    after.ended(ended(pick))
    known = after.state.get(key(1))
    assert known is not None
    assert known.home == other


def test_a_removed_replica_takes_its_reservations_with_it():
    clock = Clock()
    ledger = make_ledger(1, clock=clock)
    pick = picked(ledger.pick(key(1), {}))
    ledger.remove("e1")
    ledger.ended(ended(pick))
    lost = make_ledger(1, clock=clock)
    picked(lost.pick(key(1), {}))
    lost.remove("e1")
    for _ in range(3):
        clock.now_s += LAPSE_S
        lost.confirm({}, clock.now_s)
    assert not lost.reservations
    assert not lost._difference


@given(st.lists(st.tuples(st.sampled_from("pec"), st.integers(0, 5), st.integers(0, 4)), max_size=60))
def test_counts_return_to_zero_whatever_happened(steps):
    clock = Clock()
    ledger = make_ledger(3, clock=clock)
    open_picks = []
    for what, number, active in steps:
        clock.now_s += 1
        if what == "p":
            open_picks.append(picked(ledger.pick(key(number), {})))
        elif what == "e" and open_picks:
            ledger.ended(ended(open_picks.pop(number % len(open_picks))))
        else:
            ledger.confirm({"10.0.0.1:30000": active}, clock.now_s)
        assert all(count >= 0 for count in own(ledger))
    for pick in open_picks:
        ledger.ended(ended(pick))
    for _ in range(3):
        clock.now_s += LAPSE_S
        ledger.confirm({}, clock.now_s)
    assert own(ledger) == [0, 0, 0]
    assert not ledger.reservations
    assert not ledger.state.sessions


_hex = st.text("0123456789abcdef", min_size=1, max_size=16)


@given(_hex, st.integers(0), st.none() | st.builds(ConversationKey, _hex, _hex | st.just("")), st.integers(0))
def test_a_pick_id_brings_back_what_it_was_made_of(series, count, conversation, body_bytes):
    assert pickid.parse(pickid.make(series, count, conversation, body_bytes)) == (conversation, body_bytes)


@pytest.mark.parametrize("text", ["", "a", "a.b.c", "a.b.c.x", "a.Z.c.1", "a.b.c.1.2", "../x.b.c.1", "a.b.c.-1"])
def test_what_is_no_pick_id_is_refused(text):
    with pytest.raises(ValueError, match="pick id"):
        pickid.parse(text)


@pytest.mark.parametrize(("text", "length"), [("12", 12), ("", 0), ("-1", 0), ("9" * 400, 0), ("²", 0), ("1e9", 0)])
def test_a_length_is_a_plain_number_or_nothing(text, length):
    assert length_of({"x-sglpool-length": text}) == length
