"""What is wrong with replicas whose probes pass, which of them is replaced, and what is no reason to."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from sglpool.plan.health import AGAIN_S, RETURN_S, judge, recall
from sglpool.plan.verdicts import MAX_GAP_S, MAX_POINTS, Ailment, Sample
from support.observed import observed_pod
from support.vitals import KV_TOKENS, MINUTE_S, Ward

HOUR_S = 3600.0


def messages(ward: Ward) -> list[str]:
    return [one.sentence for one in ward.health.findings]


def test_a_collapsed_accept_length_is_found_in_the_sixth_minute_with_its_figures():
    ward = Ward.of()
    ward.engines[1].accept_length = 1.02
    ward.look()
    ward.live(4 * MINUTE_S)
    assert ward.health.findings == (), "a window is five minutes"
    ward.live(MINUTE_S)
    assert messages(ward) == [
        "kimi-b200-1 is unhealthy: its accept length was 1.02 over the last 300 s (3,000 verify calls)."
    ]
    assert ward.health.unhealthy.keys() == {"pod-B200-1"}


@pytest.mark.parametrize("ailment", [*Ailment])
def test_the_next_operator_goes_on_with_what_was_found(ailment):
    ward = Ward.of()
    ill = ward.engines[1]
    ward.live(MINUTE_S)
    if ailment == Ailment.ACCEPT_LENGTH_COLLAPSED:
        ill.accept_length = 1.0
    elif ailment == Ailment.NO_TOKENS:
        ill.stuck = True
    else:
        ill.kv_tokens //= 2
    found = ward.live(10 * MINUTE_S).unhealthy
    [why] = found.values()
    ill.pod = replace(ill.pod, draining=True, drain_cause=why.cause, drain_reason=why.reason)

    ward.health, ward.memory = recall([one.pod for one in ward.engines], ward.now_s)
    assert ward.health.unhealthy == found, "before anybody was asked"
    ward.live(10 * MINUTE_S, until=lambda health: health.unhealthy != found)
    assert ward.health.unhealthy == found
    others = [one.pod.uid for one in ward.engines if one is not ill]
    assert not ward.health.unhealthy.keys() & others


@pytest.mark.parametrize(
    "changes",
    [
        {"drain_cause": "Size"},
        {"drain_cause": "Unhealthy/NoTokens"},
        {"drain_cause": "Unhealthy/Sneezing/0"},
        {"draining": False},
        {"terminating": True},
    ],
)
def test_other_marks_are_no_verdict(changes):
    pod = observed_pod(0, **{"draining": True, "drain_cause": "Unhealthy/NoTokens/0", **changes})
    assert recall([pod], 0.0)[0].findings == ()


def test_a_former_verdict_is_dropped_when_its_engine_has_started_again_or_computes_again():
    for change in ("restarted", "computes", "nothing to do"):
        ward = Ward.of()
        ill = ward.engines[1]
        ill.pod = replace(ill.pod, draining=True, drain_cause="Unhealthy/NoTokens/0", drain_reason="it does nothing")
        ward.health, ward.memory = recall([one.pod for one in ward.engines], ward.now_s)
        assert ward.health.unhealthy.keys() == {ill.pod.uid}
        if change == "restarted":
            ill.restart()
        elif change == "nothing to do":
            ill.requests = 0
        ward.live(2 * MINUTE_S)
        assert not ward.health.findings, change


def test_the_window_moves():
    ward = Ward.of()
    ward.live(HOUR_S)
    ward.engines[0].accept_length = 1.0
    ward.live(3 * MINUTE_S)
    assert not ward.health.findings
    ward.live(2 * MINUTE_S)
    assert ward.health.unhealthy.keys() == {"pod-B200-0"}


def test_what_was_found_stays_while_the_replica_is_emptied_and_its_figures_stand():
    ward = Ward.of()
    ward.engines[1].accept_length = 1.0
    before = ward.live(10 * MINUTE_S)
    ward.engines[1].requests = 0
    assert ward.live(HOUR_S) == before
    ward.engines[1].readable = False
    assert ward.live(HOUR_S) == before
    ward.engines[1].pod = replace(ward.engines[1].pod, ready=False)
    assert ward.live(MINUTE_S) == before


def test_speculation_that_recovers_is_well():
    ward = Ward.of()
    ward.engines[1].accept_length = 1.0
    assert ward.live(10 * MINUTE_S).unhealthy
    ward.engines[1].accept_length = 4.0
    assert not ward.live(2 * MINUTE_S).findings


@pytest.mark.parametrize(
    "change",
    [{"verify_calls_per_s": 0.5}, {"exports": False}, {"accept_length": 1.6}, {"accept_length": 0.3}],
    ids=["few-calls", "no-metrics", "healthy", "counters-of-different-requests"],
)
def test_no_verdict_on_speculation(change):
    ward = Ward.of()
    ward.engines[1].accept_length = 1.0
    for name, value in change.items():
        setattr(ward.engines[1], name, value)
    assert not ward.live(HOUR_S).findings


def test_a_pool_without_a_draft_is_not_judged_by_it():
    ward = Ward.of(speculative=False)
    ward.engines[1].accept_length = 1.0
    assert not ward.live(HOUR_S).findings


def test_what_most_replicas_have_is_told_and_replaces_none():
    ward = Ward.of()
    for engine in ward.engines:
        engine.accept_length = 1.0
    ward.live(HOUR_S)
    assert not ward.health.unhealthy
    assert all("it is the draft model and not this replica" in words for words in messages(ward))
    assert len(messages(ward)) == 3


def test_a_replica_that_serves_badly_is_kept_while_no_other_serves():
    ward = Ward.of(2)
    ward.engines[0].accept_length = 1.0
    assert ward.live(10 * MINUTE_S).unhealthy.keys() == {"pod-B200-0"}
    ward.engines[1].pod = replace(ward.engines[1].pod, ready=False)
    assert not ward.live(MINUTE_S).unhealthy, "not though it is being emptied"
    assert messages(ward)[0].endswith("(3,000 verify calls); no other replica serves.")
    ward.engines[1].pod = replace(ward.engines[1].pod, ready=True, unproven="true")
    assert not ward.live(MINUTE_S).unhealthy, "one without traffic takes nobody over"
    ward.engines[1].pod = replace(ward.engines[1].pod, unproven="false")
    assert ward.live(MINUTE_S).unhealthy.keys() == {"pod-B200-0"}


def test_the_only_replica_is_replaced_if_it_serves_nobody():
    ward = Ward.of(1)
    ward.engines[0].stuck = True
    assert ward.live(10 * MINUTE_S).unhealthy.keys() == {"pod-B200-0"}


def test_no_token_in_two_minutes_under_work():
    ward = Ward.of()
    ward.live(10 * MINUTE_S)
    ward.engines[2].stuck = True
    ward.live(MINUTE_S)
    assert not ward.health.findings
    ward.live(MINUTE_S)
    assert messages(ward) == ["kimi-b200-2 is unhealthy: it has computed no token in 120 s with 4 requests to answer."]
    ward.engines[2].stuck = False
    assert not ward.live(MINUTE_S).findings, "it computes again"


def test_an_idle_engine_computes_nothing_and_is_well():
    ward = Ward.of()
    for engine in ward.engines:
        engine.requests = 0
    assert not ward.live(HOUR_S).findings


def prompt(at_s: float, used_tokens: float) -> Sample:
    """A long prompt that is read in chunks: in no count of requests."""
    return Sample(at_s=at_s, requests=0, waiting_tokens=100_000, kv_total_tokens=KV_TOKENS, progress=(5.0, used_tokens))


def test_a_long_prompt_that_is_read_chunk_by_chunk_is_progress_and_one_that_is_not_is_none():
    ward, pod = Ward.of(0), observed_pod(0)
    for minute in range(10):
        at_s = minute * MINUTE_S
        health, ward.memory = judge(
            [pod], {pod.uid: prompt(at_s, 8192.0 * minute)}, ward.memory, at_s, speculative=False
        )
        assert not health.findings
    for minute in range(10, 13):
        at_s = minute * MINUTE_S
        health, ward.memory = judge([pod], {pod.uid: prompt(at_s, 1.0)}, ward.memory, at_s, speculative=False)
    words = "it has computed no token in 120 s with a prompt of 100,000 tokens to answer"
    assert {uid: why.reason for uid, why in health.unhealthy.items()} == {pod.uid: words}


def test_a_kv_pool_that_shrank_at_a_restart():
    ward = Ward.of()
    ward.live(5 * MINUTE_S)
    ward.engines[0].restart(kv_tokens=700_000)
    ward.live(MINUTE_S)
    assert messages(ward) == ["kimi-b200-0 is unhealthy: its KV pool has 700,000 tokens, 1,383,441 before its restart."]
    ward.engines[0].restart(kv_tokens=KV_TOKENS)
    assert not ward.live(MINUTE_S).findings, "the next start got it back"


def test_a_kv_pool_smaller_than_those_of_the_peers():
    ward = Ward.of()
    ward.engines[1].kv_tokens = 1_000_000
    ward.look()
    assert messages(ward) == [
        "kimi-b200-1 is unhealthy: its KV pool has 1,000,000 tokens, those of its peers 1,383,441."
    ]


def test_one_large_pool_makes_no_other_small():
    ward = Ward.of()
    ward.engines[1].kv_tokens = 2 * KV_TOKENS
    assert not ward.live(HOUR_S).findings


@pytest.mark.parametrize("change", [{"revision": "old"}, {"gpu_type": "B300"}])
def test_other_templates_are_no_peers(change):
    ward = Ward.of()
    ward.engines[1].kv_tokens = 700_000
    ward.engines[1].pod = replace(ward.engines[1].pod, **change)
    assert not ward.live(HOUR_S).findings


def test_a_little_less_is_no_shrinkage():
    ward = Ward.of()
    ward.live(MINUTE_S)
    ward.engines[1].restart(kv_tokens=round(KV_TOKENS * 0.95))
    assert not ward.live(HOUR_S).findings


def test_a_restart_ends_what_was_found():
    ward = Ward.of()
    ward.engines[1].accept_length = 1.0
    assert ward.live(10 * MINUTE_S).unhealthy
    ward.engines[1].restart()
    ward.engines[1].accept_length = 3.5
    assert not ward.live(MINUTE_S).findings


def test_after_a_gap_in_the_readings_the_window_begins_anew():
    ward = Ward.of()
    ward.engines[1].accept_length = 1.0
    ward.live(4 * MINUTE_S)
    ward.live(MAX_GAP_S + MINUTE_S, every_s=MAX_GAP_S + MINUTE_S)
    assert not ward.live(4 * MINUTE_S).findings
    assert ward.live(2 * MINUTE_S).findings


def test_one_at_a_time_and_the_next_when_the_first_is_back():
    ward = Ward.of(5)
    for number in (1, 3):
        ward.engines[number].accept_length = 1.0
    ward.live(10 * MINUTE_S)
    assert ward.health.unhealthy.keys() == {"pod-B200-1"}
    assert "kimi-b200-1 is replaced first" in messages(ward)[1]
    back = ward.replace(1)
    back.pod = replace(back.pod, ready=False)
    ward.live(10 * MINUTE_S)
    assert not ward.health.unhealthy, "it is not back yet"
    assert "kimi-b200-1 is replaced first" in messages(ward)[0]
    back.pod = replace(back.pod, ready=True)
    ward.live(MINUTE_S)
    assert ward.health.unhealthy.keys() == {"pod-B200-3"}


def test_one_that_never_comes_back_is_not_waited_for_for_ever():
    ward = Ward.of(5)
    for number in (1, 3):
        ward.engines[number].accept_length = 1.0
    ward.live(10 * MINUTE_S)
    back = ward.replace(1)
    back.pod = replace(back.pod, ready=False)
    ward.live(RETURN_S + 2 * MINUTE_S)
    assert ward.health.unhealthy.keys() == {"pod-B200-3"}


def test_a_worse_one_does_not_take_the_turn_of_one_that_is_being_emptied():
    ward = Ward.of(5)
    ward.engines[3].accept_length = 1.0
    ward.live(10 * MINUTE_S)
    ward.engines[1].stuck = True
    ward.live(10 * MINUTE_S)
    assert ward.health.unhealthy.keys() == {"pod-B200-3"}
    assert len(ward.health.findings) == 2


def test_the_worst_goes_first():
    ward = Ward.of(5)
    ward.live(10 * MINUTE_S)
    ward.engines[1].kv_tokens = 700_000
    ward.engines[2].stuck = True
    # Judged together for the first time, as after a break.
    ward.memory = replace(ward.memory, acting=None)
    ward.engines[1].readable = False
    ward.live(MINUTE_S)
    ward.engines[1].readable = True
    ward.live(MINUTE_S)
    assert ward.health.unhealthy.keys() == {"pod-B200-2"}
    assert {one.verdict.ailment for one in ward.health.findings} == {Ailment.NO_TOKENS, Ailment.KV_POOL_SHRUNK}


def test_what_comes_back_ill_is_tried_again_after_hours_that_grow():
    ward = Ward.of()
    replaced_at_s = []
    while len(replaced_at_s) < 4:
        ward.engines[1].accept_length = 1.0
        ward.live(100 * HOUR_S, until=lambda found: bool(found.unhealthy))
        assert ward.health.unhealthy
        replaced_at_s.append(ward.now_s)
        ward.replace(1)
        ward.look()
        ward.engines[1].accept_length = 1.0
        ward.live(10 * MINUTE_S)
        assert "it was replaced for want of health before, so look at its node" in messages(ward)[0]
    waits = [after - before for before, after in itertools.pairwise(replaced_at_s)]
    assert [round(wait / AGAIN_S) for wait in waits] == [1, 2, 4]


def test_memory_is_bounded():
    ward = Ward.of()
    for number in range(20):
        ward.live(10 * MINUTE_S, every_s=1.0)
        ward.replace(number % 3)
        ward.look()
        assert len(ward.memory.replicas) == 3
        assert all(len(one.points) <= MAX_POINTS for one in ward.memory.replicas.values())
        assert len(ward.memory.replaced) <= 3


def test_a_window_is_found_by_quick_looks_too():
    ward = Ward.of()
    ward.engines[1].accept_length = 1.0
    ward.live(299, every_s=1.0)
    assert not ward.health.findings
    ward.live(3, every_s=1.0)
    assert ward.health.unhealthy


def test_stale_samples_and_pods_that_go_are_not_judged():
    ward = Ward.of()
    ward.engines[1].kv_tokens = 1
    samples = {one.pod.uid: one.sample(ward.now_s - 61) for one in ward.engines}
    health, _ = judge([one.pod for one in ward.engines], samples, ward.memory, ward.now_s, speculative=True)
    assert not health.findings
    ward.engines[1].pod = replace(ward.engines[1].pod, ready=False, terminating=True)
    assert not ward.look().findings
