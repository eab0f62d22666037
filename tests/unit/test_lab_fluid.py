"""The fluid model: the same day for the same seed, replicas that start and leave late, and rankings that make sense."""

import math
import random

import pytest

from sglpool.lab.fluid import DAY_S, STEP_S, Day, Fleet, simulate
from sglpool.lab.fluid_scalers import HorizontalPodAutoscaler, KnativePodAutoscaler, Ours, policy_of


def fleet(replicas: int, *, drain_s: float = 0.0) -> Fleet:
    found = Fleet(target=5.0, cold_start_s=600.0, drain_s=drain_s, rng=random.Random(1))
    found.fill(replicas)
    return found


def test_a_seed_makes_a_day() -> None:
    load = Day(seed=3).load()
    assert load == Day(seed=3).load() != Day(seed=4).load()
    assert len(load) == DAY_S / STEP_S
    calm = Day(noise=0.0, bursts=0).load()
    assert (min(calm), max(calm)) == (pytest.approx(64.0), pytest.approx(240.0))


def test_a_replica_serves_after_its_cold_start_and_leaves_after_its_drain() -> None:
    pool = fleet(4, drain_s=300.0)
    pool.resize(6, 0.0)
    assert (pool.serving(500.0), pool.serving(700.0)) == (4, 6)
    pool.resize(3, 1000.0)
    assert (pool.serving(1000.0), len(pool.pods)) == (3, 6)
    pool.resize(5, 1100.0)
    assert pool.serving(1100.0) == 5
    pool.resize(5, 1300.0)
    assert len(pool.pods) == 5


def test_a_perfect_size_costs_nothing_and_a_small_one_is_overloaded() -> None:
    class Fixed:
        every_s = 15.0

        def want(self, fleet: Fleet, load: float | None, now_s: float) -> int:
            return len(fleet.pods)

    load = [100.0] * 1000
    assert simulate(load, fleet(20), Fixed()).over_ideal == pytest.approx(0.0)
    assert simulate(load, fleet(20), Fixed()).above == 0.0
    small = simulate(load, fleet(15), Fixed())
    assert (small.above, small.far_above) == (1.0, 0.0)
    assert small.over_ideal == pytest.approx(-0.25)


@pytest.mark.parametrize("scaler", [HorizontalPodAutoscaler(), KnativePodAutoscaler()])
def test_the_formulas_of_others_follow_a_load(scaler: HorizontalPodAutoscaler | KnativePodAutoscaler) -> None:
    load = [100.0] * 500 + [200.0] * 500 + [50.0] * 500
    sizes = simulate(load, fleet(23), scaler).sizes
    assert sizes[499] in range(20, 24)
    assert sizes[999] == math.ceil(200 / 5 / 0.9)
    assert sizes[-1] == math.ceil(50 / 5 / 0.9)


def test_a_day_with_a_blackout_shrinks_nothing_in_it() -> None:
    load = Day(seed=1).load()
    pool = fleet(math.ceil(load[0] / 4.5))
    found = simulate(load, pool, Ours(policy=policy_of(pool)), readable=lambda now_s: not 68_400 <= now_s < 70_200)
    assert found.blind_scale_downs == 0
    assert found.scale_downs > 5
    assert found.above < 0.04
    assert found.over_ideal < 0.4
    blind = HorizontalPodAutoscaler(blind=True)
    other = fleet(math.ceil(load[0] / 4.5))
    assert simulate(load, other, blind, readable=lambda now_s: not 68_400 <= now_s < 70_200).blind_scale_downs > 0
