"""No history of a healthy pool, and none of which the telling figures are missing or begin anew, gives a verdict."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sglpool.plan.health import HealthMemory, judge
from sglpool.plan.verdicts import KV_TOLERANCE, MAX_ACCEPT_LENGTH, WINDOW_S
from support.vitals import KV_TOKENS, MINUTE_S, Engine, Ward

gaps_s = st.sampled_from([1.0, 15.0, MINUTE_S, 2 * MINUTE_S, 3600.0])
accept_lengths = st.floats(MAX_ACCEPT_LENGTH + 0.01, 8.0)
collapsed = st.floats(1.0, MAX_ACCEPT_LENGTH)


@st.composite
def healthy_minutes(draw: st.DrawFn) -> tuple[float, list[tuple[float, float, int, bool, bool]]]:
    """Time until the next look, and for each of three engines what it does until then and whether it is read then."""
    engine = st.tuples(accept_lengths, st.floats(0.1, 100.0), st.integers(0, 12), st.booleans(), st.booleans())
    return draw(gaps_s), draw(st.lists(engine, min_size=3, max_size=3))


@given(histories=st.lists(healthy_minutes(), max_size=40), pools=st.lists(st.floats(0, KV_TOLERANCE / 2), min_size=3))
def test_healthy_histories_never_give_a_verdict(
    histories: list[tuple[float, list[tuple[float, float, int, bool, bool]]]], pools: list[float]
) -> None:
    ward = Ward.of(3)
    for engine, less in zip(ward.engines, pools, strict=False):
        engine.kv_tokens = round(KV_TOKENS * (1 - less))
    for gap_s, doings in histories:
        for engine, (length, calls_per_s, requests, readable, restarts) in zip(ward.engines, doings, strict=True):
            engine.accept_length, engine.verify_calls_per_s = length, calls_per_s
            engine.requests, engine.readable = requests, readable
            if restarts and requests == 0:
                engine.restart()
        assert not ward.live(gap_s, every_s=gap_s).findings


@given(
    looks=st.lists(st.tuples(st.sampled_from(["missing", "unread", "restart"]), st.integers(1, 4)), max_size=20),
    accept_length=collapsed,
    stuck=st.booleans(),
)
def test_figures_that_are_missing_or_begin_anew_give_no_verdict(
    looks: list[tuple[str, int]], accept_length: float, stuck: bool
) -> None:
    """However ill a replica is: before a whole window of it was read in one piece, nothing is said."""
    ward = Ward.of(3)
    ill = ward.engines[0]
    for what, minutes in looks:
        ill.accept_length, ill.exports, ill.readable = accept_length, True, True
        # Less than a window of figures, or none under work.
        ward.live(min(minutes, 1) * MINUTE_S if stuck else minutes * MINUTE_S)
        assert not ward.health.findings
        if what == "restart":
            ill.restart()
        else:
            setattr(ill, "exports" if what == "missing" else "readable", False)
        ill.stuck = stuck and what != "restart"
        ward.live(WINDOW_S, every_s=MINUTE_S) if what != "restart" else ward.look()
        assert not ward.health.findings
        ill.stuck = False


@given(
    ill=st.lists(st.sampled_from(["", "collapsed", "stuck", "small"]), min_size=1, max_size=8),
    healed=st.lists(st.integers(0, 7), max_size=30),
)
def test_at_most_one_replica_is_to_be_replaced_at_a_time(ill: list[str], healed: list[int]) -> None:
    ward = Ward.of(len(ill))
    for engine, what in zip(ward.engines, ill, strict=True):
        _fall_ill(engine, what)
    for number in healed:
        ward.live(2 * MINUTE_S)
        assert len(ward.health.unhealthy) <= 1
        assert ward.health.unhealthy.keys() <= {one.pod.uid for one in ward.engines}
        if number < len(ill):
            ward.engines[number].pod = replace(ward.engines[number].pod, ready=number % 2 == 0)
        for index, engine in enumerate(ward.engines):
            if engine.pod.uid in ward.health.unhealthy and number % 3 == 0:
                ward.replace(index)


@given(at_s=st.floats(0, 1e6), back_s=st.floats(0, 1e5))
def test_a_clock_that_goes_back_gives_no_verdict(at_s: float, back_s: float) -> None:
    ward = Ward.of(2)
    engine = ward.engines[0]
    engine.accept_length = 1.0
    _, memory = judge([engine.pod], {engine.pod.uid: engine.sample(at_s)}, HealthMemory(), at_s, speculative=True)
    engine.live(1e4)
    now_s = at_s - back_s
    health, _ = judge([engine.pod], {engine.pod.uid: engine.sample(now_s)}, memory, now_s, speculative=True)
    assert not health.findings


def _fall_ill(engine: Engine, what: str) -> None:
    if what == "collapsed":
        engine.accept_length = 1.0
    elif what == "stuck":
        engine.stuck = True
    elif what == "small":
        engine.kv_tokens //= 2
