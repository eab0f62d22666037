"""Hours of a fluid day, by request: chosen by rule, entered as the fluid model left them, and in a closed loop."""

import math
import random
from dataclasses import replace

import pytest

from sglpool.lab.fluid import STEP_S, Day, Fleet, Outcome, simulate
from sglpool.lab.fluid_joined import JoinedSimulator, run_window
from sglpool.lab.fluid_scalers import Ours, policy_of
from sglpool.lab.fluid_windows import Entry, Window, enter, windows_of
from sglpool.lab.workload import Kind

SMALL = Day(low=8.0, high=30.0, bursts=1, burst=(10.0, 12.0), seed=2)


def entry_of(day: Day, window: Window, *, drain_s: float = 300.0) -> Entry:
    load = day.load()
    fleet = Fleet(target=5.0, cold_start_s=300.0, drain_s=drain_s, rng=random.Random(1))
    fleet.fill(math.ceil(load[0] / 5.0 / 0.9))
    return enter(day, window, fleet, Ours(policy=policy_of(fleet, cold_start_s=300.0)))


def by_hand(load: list[float], replicas: int, *, drain_s: float = 120.0) -> Entry:
    """An hour whose load is known, with an autoscaler that has seen nothing yet."""
    window = Window(name="by hand", begin_s=0.0, seconds=len(load) * STEP_S)
    fleet = Fleet(target=5.0, cold_start_s=120.0, drain_s=drain_s, rng=random.Random(1))
    fleet.fill(replicas)
    scaler = Ours(policy=policy_of(fleet, cold_start_s=120.0))
    return Entry(window=window, fleet=fleet, scaler=scaler, load=load, outcome=Outcome())


def test_windows_are_where_the_load_rises_most_is_highest_and_falls_most() -> None:
    calm = Day(noise=0.0, bursts=0)
    morning, peak, evening = windows_of(calm)
    assert [window.name for window in (morning, peak, evening)] == ["morning", "peak", "evening"]
    assert (morning.begin_s, peak.begin_s, evening.begin_s) == (19_800.0, 41_400.0, 63_000.0)
    load = calm.load()
    assert load[morning.steps][-1] - load[morning.steps][0] == pytest.approx(23.0, abs=0.5)


def test_a_burst_draws_the_window() -> None:
    for seed in range(1, 5):
        day = Day(seed=seed)
        load = replace(day, noise=0.0).load()
        morning = windows_of(day)[0]
        rises = [max(load[step : step + 720]) - load[step] for step in range(0, 12 * 720 - 720, 180)]
        assert max(load[morning.steps]) - load[morning.steps][0] == pytest.approx(max(rises))


def test_the_fluid_model_taken_on_at_a_window_is_the_day_that_was_never_stopped() -> None:
    window = windows_of(SMALL)[2]
    whole = Fleet(target=5.0, cold_start_s=300.0, drain_s=300.0, rng=random.Random(1))
    load = SMALL.load()
    whole.fill(math.ceil(load[0] / 5.0 / 0.9))
    day = simulate(load, whole, Ours(policy=policy_of(whole, cold_start_s=300.0)))
    entry = entry_of(SMALL, window)
    assert entry.outcome.sizes == day.sizes[window.steps]
    assert entry.outcome.carried == day.carried[window.steps]
    assert entry.again(load[window.steps]).above == entry.outcome.above


def test_an_hour_by_request_has_one_result_and_leaves_its_entry_as_it_was() -> None:
    window = replace(windows_of(SMALL)[0], seconds=900.0)
    entry = entry_of(SMALL, window)
    once = run_window(entry, Kind.AUTONOMOUS, 1)
    assert once == run_window(entry, Kind.AUTONOMOUS, 1)
    assert once.figures.requests > 500
    assert once.cut == 0


def test_requests_in_flight_follow_the_load_and_the_pool_follows_them() -> None:
    load = [15.0] * 240 + [40.0] * 360
    run = JoinedSimulator(by_hand(load, 4), Kind.AUTONOMOUS, 1)
    found = run.joined()
    before, after = run._counts.in_flight[:240], run._counts.in_flight[360:]
    assert sum(before) / len(before) == pytest.approx(15.0, rel=0.25)
    assert sum(after) / len(after) == pytest.approx(40.0, rel=0.25)
    assert found.grown > 0
    assert found.added >= 4
    assert 0 < found.above < 0.6
    assert found.fluid_above > 0


def test_people_who_come_in_a_burst_do_not_all_ask_at_once() -> None:
    load = [20.0] * 60 + [60.0] * 180
    run = JoinedSimulator(by_hand(load, 16), Kind.INTERACTIVE, 1)
    run.run()
    assert max(run._counts.in_flight) < 1.5 * 60.0
    assert sum(run._counts.in_flight[-60:]) / 60 == pytest.approx(60.0, rel=0.3)


def test_a_pool_shrinks_by_drains_that_load_cancels_and_that_end_early_where_nobody_is_left() -> None:
    load = [4.0] * 840 + [45.0] * 120
    run = JoinedSimulator(by_hand(load, 12, drain_s=600.0), Kind.AUTONOMOUS, 1)
    found = run.joined()
    assert found.let_go > 0
    assert min(found.drains_s) < 600.0
    assert found.figures.refused == 0
    staying = {pod.uid for pod in run._fleet.pods if pod.leaves_s is None}
    draining = {uid for uid, replica in run._routers[0].replicas.items() if replica.draining}
    assert not draining & staying
