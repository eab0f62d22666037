"""The autoscaler's decision on the load, rule by rule, on pools that live from tick to tick.

Not here: starts, gates and GPU types (`test_scaling_starts`).
"""

import math
from dataclasses import replace

import pytest

from sglpool.scaling import Memory, Reason, TypePolicy, TypeState, decide
from support.scaling import START_S, TICK_S, WINDOW_S, Pool, policy, settled, two_types


class TestGrowing:
    def test_a_load_above_target_adds_what_carries_it_at_once(self) -> None:
        pool = Pool(policy(), load=45.0).fill(B200=4)
        decision = pool.tick()
        # 45 / 0.9 = 50 places, 10 a replica.
        assert (decision.total, decision.reason) == (5, Reason.LOAD_ABOVE_TARGET)
        assert decision.inputs["needRequests"] == pytest.approx(50.0)
        assert "1 more B200" in decision.message

    def test_a_load_within_five_percent_of_the_capacity_changes_nothing(self) -> None:
        assert Pool(policy(), load=0.9 * 41.9).fill(B200=4).tick().reason is Reason.WITHIN_TARGET
        assert Pool(policy(), load=0.9 * 42.1).fill(B200=4).tick().total == 5

    def test_a_full_kv_cache_grows_a_pool_with_few_requests(self) -> None:
        decision = Pool(policy(), load=4.0, kv_share=0.95).fill(B200=8).tick()
        # 80 places * 0.95 / 0.8.
        assert decision.inputs["needRequests"] == pytest.approx(95.0)
        assert (decision.total, decision.reason) == (10, Reason.KV_ABOVE_TARGET)

    def test_replicas_that_start_are_counted_and_not_asked_for_again(self) -> None:
        pool = Pool(policy(), load=90.0).fill(B200=8)
        assert pool.tick().total == 10
        assert pool.run(500.0).total == 10

    def test_pods_that_are_yet_to_be_made_are_counted_too(self) -> None:
        pool = Pool(policy(), load=90.0).fill(B200=8)
        signals = pool.signals()
        memory, totals = Memory(), []
        for tick in range(4):
            decision, memory = decide(pool.policy, signals, memory, START_S + tick * TICK_S)
            totals.append(decision.total)
        assert totals == [10, 10, 10, 10]

    def test_a_mean_of_a_minute_decides_while_nothing_waits(self) -> None:
        pool = settled(load=70.0, replicas=8)
        pool.load = 90.0
        assert pool.tick().total == 8
        assert pool.run(60.0).total == 10

    @pytest.mark.parametrize("sign", ["queued", "refused"])
    def test_what_waits_or_was_refused_shortens_the_mean(self, sign: str) -> None:
        pool = settled(load=70.0, replicas=8)
        pool.load = 140.0
        setattr(pool, sign, 5)
        decision = pool.tick()
        assert decision.total >= 12
        assert decision.reason is Reason.REQUESTS_WAITING

    def test_refused_conversations_are_demand(self) -> None:
        assert Pool(policy(), load=0.0, refused=30).fill(B200=1).tick().total == 4

    def test_at_most_four_or_half_of_the_pool_start_in_half_a_cold_start(self) -> None:
        pool = Pool(policy(), load=900.0).fill(B200=20)
        assert pool.tick().total == 30
        assert pool.run(270.0).total == 30
        assert pool.decisions[-1].reason is Reason.GROWTH_LIMITED
        assert pool.run(60.0).total == 45

    def test_a_small_pool_may_take_four(self) -> None:
        assert Pool(policy(), load=900.0).fill(B200=1).tick().total == 5

    def test_the_maximum_holds_and_says_so(self) -> None:
        pool = Pool(policy(most=9), load=900.0).fill(B200=8)
        assert pool.tick().total == 9
        decision = pool.tick()
        assert (decision.total, decision.reason) == (9, Reason.AT_MAXIMUM)


class TestJumps:
    """A load that jumps: one reading may be chance, two are not."""

    def jump(self, before: float, after: float, replicas: int) -> Pool:
        pool = Pool(policy(), load=before).fill(B200=replicas)
        pool.tick(8)
        pool.load = after
        return pool

    def test_two_readings_seconds_apart_are_enough(self) -> None:
        # 48 of 80 places, and then 96: a mean of a minute would be above 84 * 0.9 after the third tick only.
        pool = self.jump(48.0, 96.0, 8)
        first = pool.tick()
        assert (first.total, first.look_again) == (8, True)
        pool.now_s += 3.0 - TICK_S
        second = pool.tick()
        assert (second.total, second.reason, second.look_again) == (11, Reason.LOAD_ABOVE_TARGET, False)
        assert "96 requests in flight (mean of 2 readings after a jump) need 107 places" in second.message

    def test_growth_by_the_mean_is_completed_within_seconds_too(self) -> None:
        pool = self.jump(60.0, 180.0, 8)
        first = pool.tick()
        assert (first.total, first.look_again) == (10, True)
        pool.now_s += 3.0 - TICK_S
        # As many as may start in half a cold start: four.
        assert pool.tick().total == 12

    def test_one_reading_is_chance(self) -> None:
        pool = self.jump(48.0, 96.0, 8)
        assert pool.tick().look_again
        pool.load = 48.0
        assert pool.run(600.0).total == 8
        assert not any(one.look_again for one in pool.decisions[9:])

    def test_a_second_decision_on_the_same_reading_is_not_a_second_reading(self) -> None:
        pool = self.jump(48.0, 96.0, 8)
        pool.tick()
        pool.now_s -= TICK_S
        assert pool.tick().total == 8

    @pytest.mark.parametrize(
        ("before", "after", "replicas"),
        [(60.0, 86.0, 8), (2.0, 4.0, 1), (0.0, 1.0, 1), (20.0, 60.0, 8)],
        ids=["less than half more", "no more than chance", "one request", "it has places enough"],
    )
    def test_what_is_no_jump_is_not_looked_at_again(self, before: float, after: float, replicas: int) -> None:
        assert not self.jump(before, after, replicas).tick().look_again

    def test_what_cannot_grow_is_not_looked_at_for_ever(self) -> None:
        pool = Pool(policy(most=8), load=48.0).fill(B200=8)
        pool.tick(8)
        pool.load = 200.0
        pool.tick(40)
        assert sum(one.look_again for one in pool.decisions) <= 1


class TestShrinking:
    def test_a_low_load_shrinks_after_a_window_and_not_before(self) -> None:
        pool = Pool(policy(), load=36.0).fill(B200=10)
        assert pool.run(WINDOW_S).total == 10
        assert pool.decisions[-1].reason is Reason.WINDOW_OPEN
        decision = pool.tick()
        assert (decision.total, decision.reason) == (9, Reason.LOAD_BELOW_TARGET)

    def test_the_next_step_is_two_minutes_later_and_a_tenth_of_the_pool(self) -> None:
        pool = Pool(policy(), load=0.0).fill(B200=50)
        pool.run(WINDOW_S)
        steps = [pool.tick().total for _ in range(17)]
        assert steps == [45] * 8 + [41] * 8 + [37]

    def test_it_stops_where_the_largest_need_of_the_window_fits(self) -> None:
        pool = Pool(policy(), load=54.0).fill(B200=10)
        pool.run(300.0)
        pool.load = 20.0
        pool.run(720.0)
        sizes = {decision.total for decision in pool.decisions}
        assert sizes >= {10, 9}
        # 54 / 0.9 = 60 places were needed within the window.
        assert min(sizes) >= 6
        assert pool.run(3600.0).total == 3

    def test_a_peak_in_the_window_keeps_the_pool(self) -> None:
        pool = Pool(policy(), load=20.0).fill(B200=10)
        pool.run(800.0)
        pool.load = 89.0
        pool.run(90.0)
        pool.load = 20.0
        assert pool.run(850.0).total == 10

    def test_nothing_shrinks_while_a_replica_starts(self) -> None:
        pool = settled(load=63.0, replicas=8)
        pool.load = 20.0
        pool.replicas["B200"][3].since_s = pool.now_s
        pool.replicas["B200"][3].ready_s = pool.now_s + 1100.0
        decision = pool.run(1100.0)
        assert (decision.total, decision.reason) == (8, Reason.REPLICAS_STARTING)
        assert pool.run(60.0).total == 7

    def test_a_pool_does_not_shrink_below_what_one_replica_less_could_carry(self) -> None:
        pool = settled(load=14.9, replicas=2)
        # 16.6 places of 20 are needed: less than 85%, but more than one replica has.
        assert (pool.tick().total, pool.decisions[-1].reason) == (2, Reason.WOULD_OVERLOAD)

    def test_what_is_left_is_not_filled_to_the_brim(self) -> None:
        pool = settled(load=17.5, replicas=3)
        # 19.4 places are needed: two replicas have 20, but would be above 95% from the first minute on.
        assert (pool.tick().total, pool.decisions[-1].reason) == (3, Reason.WOULD_OVERLOAD)
        pool.load = 17.0
        assert pool.run(WINDOW_S + 90.0).total == 2

    def test_replicas_that_drain_are_no_capacity_and_are_taken_back_when_load_returns(self) -> None:
        pool = Pool(policy(), load=9.0).fill(B200=10)
        signals, memory = pool.signals(), Memory()
        for tick in range(100):
            decision, memory = decide(pool.policy, signals, memory, START_S + tick * TICK_S)
        drained = decision.total
        assert drained < 6
        busy = replace(signals, in_flight=54.0, queued=1)
        decision, memory = decide(pool.policy, busy, memory, START_S + 100 * TICK_S)
        assert decision.total == 6
        # They are there already, so that they are not asked for twice.
        assert decide(pool.policy, busy, memory, START_S + 101 * TICK_S)[0].total == 6

    def test_a_clock_that_jumps_leaves_a_drain_alone(self) -> None:
        pool = Pool(policy(), load=9.0).fill(B200=10)
        signals, memory = pool.signals(), Memory()
        for tick in range(100):
            decision, memory = decide(pool.policy, signals, memory, START_S + tick * TICK_S)
        later, _ = decide(pool.policy, signals, memory, START_S + 1e6)
        assert later.wanted == decision.wanted

    def test_the_minimum_holds_and_says_so(self) -> None:
        pool = Pool(policy(least=3), load=0.0).fill(B200=3)
        pool.run(2 * WINDOW_S)
        assert (pool.wanted["B200"], pool.decisions[-1].reason) == (3, Reason.AT_MINIMUM)

    def test_load_that_returns_takes_back_what_was_let_go(self) -> None:
        pool = settled(load=20.0, replicas=10)
        assert pool.wanted["B200"] < 10
        pool.load = 90.0
        assert pool.run(75.0).total == 10

    def test_a_slow_cold_start_makes_the_window_longer(self) -> None:
        pool = Pool(policy(cold_start_s=1200.0), load=10.0).fill(B200=10)
        assert pool.run(1800.0).total == 10
        assert pool.tick().total == 9


class TestMissingData:
    @pytest.mark.parametrize("load", [None, math.nan, math.inf, -1.0])
    def test_without_a_total_of_the_routers_the_pool_is_held(self, load: float | None) -> None:
        pool = settled(load=63.0, replicas=8)
        pool.load = load
        decision = pool.run(3 * WINDOW_S)
        assert (decision.total, decision.reason, decision.valid) == (8, Reason.NO_LOAD_TOTAL, False)
        assert len({one.total for one in pool.decisions}) == 1

    def test_a_total_without_one_of_the_routers_is_none(self) -> None:
        pool = settled(load=63.0, replicas=8)
        signals = replace(pool.signals(), in_flight=0.0, routers_read=1, routers_known=2)
        decision, _ = decide(pool.policy, signals, pool.memory, pool.now_s)
        assert (decision.total, decision.reason) == (8, Reason.NO_LOAD_TOTAL)
        assert "1 of 2 routers" in decision.message

    def test_a_pool_whose_routers_are_all_away_is_held(self) -> None:
        pool = settled(load=63.0, replicas=8)
        signals = replace(pool.signals(), in_flight=0.0, routers_read=0, routers_known=0)
        assert decide(pool.policy, signals, pool.memory, pool.now_s)[0].reason is Reason.NO_LOAD_TOTAL

    @pytest.mark.parametrize("age_s", [46.0, -46.0, math.nan, math.inf])
    def test_an_old_total_is_none(self, age_s: float) -> None:
        pool = settled(load=20.0, replicas=3)
        signals = replace(pool.signals(), in_flight=900.0, age_s=age_s)
        assert decide(pool.policy, signals, pool.memory, pool.now_s)[0].reason is Reason.NO_LOAD_TOTAL

    def test_with_too_few_replicas_read_the_pool_is_held(self) -> None:
        pool = settled(load=20.0, replicas=10)
        before, pool.unread = pool.wanted, 4
        decision = pool.run(WINDOW_S)
        assert (dict(decision.wanted), decision.reason) == (before, Reason.REPLICAS_UNREADABLE)

    def test_after_a_blackout_the_window_begins_anew(self) -> None:
        pool = Pool(policy(), load=20.0).fill(B200=10)
        pool.run(WINDOW_S - 60.0)
        pool.load = None
        pool.run(1800.0)
        pool.load = 20.0
        assert pool.run(WINDOW_S).total == 10
        assert pool.tick().total == 9

    def test_one_missed_reading_does_not_begin_the_window_anew(self) -> None:
        pool = Pool(policy(), load=20.0).fill(B200=10)
        pool.run(WINDOW_S - 60.0)
        pool.load = None
        pool.tick()
        pool.load = 20.0
        assert pool.run(90.0).total == 9

    def test_a_replica_without_a_reading_is_average_for_growing_and_full_for_shrinking(self) -> None:
        pool = settled(load=10.0, replicas=10, kv_share=0.66, unread=2)
        # 66 / 0.8 = 82.5 of 100 places with the average, 91 with two full ones.
        decision = pool.decisions[-1]
        assert decision.inputs["needRequests"] == pytest.approx(82.5)
        assert decision.inputs["peakNeedRequests"] == pytest.approx(91.0)
        assert decision.total == 10
        pool.unread = 0
        assert pool.run(2 * WINDOW_S).total < 10

    def test_a_replica_that_reports_more_than_exists_was_not_read(self) -> None:
        pool = Pool(policy(), load=10.0, kv_share=1.2).fill(B200=4)
        assert pool.tick().reason is Reason.REPLICAS_UNREADABLE

    def test_bounds_hold_without_data(self) -> None:
        pool = Pool(policy(least=6), load=None).fill(B200=4)
        assert pool.tick().total == 6
        pool.policy = policy(least=1, most=3)
        assert pool.tick().total == 3

    def test_a_pool_without_a_router_goes_by_what_its_engines_run(self) -> None:
        pool = Pool(policy(), load=90.0, has_router=False).fill(B200=8)
        assert pool.tick().total == 10

    def test_without_a_router_unread_engines_are_average_for_growing_and_full_for_shrinking(self) -> None:
        pool = Pool(policy(), load=40.0, has_router=False, unread=2).fill(B200=10)
        pool.run(WINDOW_S + 30.0)
        inputs = pool.decisions[-1].inputs
        assert inputs["needRequests"] == pytest.approx((32 + 2 * 4) / 0.9)
        assert inputs["peakNeedRequests"] == pytest.approx((32 + 2 * 10) / 0.9)


class TestRestartsAndClocks:
    def test_after_a_restart_nothing_shrinks_for_a_window(self) -> None:
        pool = settled(load=9.0, replicas=10)
        before, pool.memory = pool.wanted["B200"], Memory()
        assert pool.run(WINDOW_S).total == before
        assert pool.tick().total == before - 1

    def test_after_a_restart_growth_is_not_delayed(self) -> None:
        pool = settled(load=63.0, replicas=8)
        pool.memory, pool.load = Memory(), 90.0
        assert pool.tick().total == 10

    @pytest.mark.parametrize("jump_s", [-86_400.0, -20.0, 200.0, 86_400.0])
    def test_a_clock_that_jumps_shrinks_nothing(self, jump_s: float) -> None:
        pool = Pool(policy(), load=9.0).fill(B200=10)
        pool.run(WINDOW_S - TICK_S)
        pool.now_s += jump_s
        assert pool.tick().reason is Reason.CLOCK_JUMPED
        assert pool.run(WINDOW_S).total == 10

    def test_a_clock_that_jumps_all_the_time_holds_the_pool(self) -> None:
        pool = Pool(policy(), load=9.0).fill(B200=10)
        for _ in range(100):
            pool.now_s += 1000.0
            assert pool.tick().total == 10


class TestIllegalPolicies:
    @pytest.mark.parametrize(
        ("wrong", "words"),
        [
            (policy(TypePolicy(type="B200", target_running_requests=0)), "must be 1 or more"),
            (policy(TypePolicy(type="B200", target_running_requests=-3)), "must be 1 or more"),
            (
                policy(TypePolicy(type="B200", target_running_requests=64, max_running_requests=48)),
                "the engine runs at most 48",
            ),
            (
                policy(TypePolicy(type="B200", target_running_requests=8, min_replicas=3, max_replicas=2)),
                "above maxReplicas 2",
            ),
            (policy(TypePolicy(type="B200", target_running_requests=8, min_replicas=-1)), "0 or more"),
            (policy(least=5, most=4), "0 <= min <= max"),
            (policy(*two_types(min_replicas=5), most=4), "sum to 5"),
            (policy(TypePolicy(type="B200", target_running_requests=8, max_replicas=2), least=3), "sum to less"),
            (policy(target_kv_utilization=0.0), "utilisation"),
            (policy(target_kv_utilization=math.nan), "utilisation"),
            (policy(cold_start_s=0.0), "more than 0 s"),
            (replace(policy(), types=()), "no GPU type"),
        ],
    )
    def test_hold_the_pool_as_it_is_and_say_why(self, wrong: object, words: str) -> None:
        pool = settled(load=63.0, replicas=8)
        pool.policy, pool.load = wrong, 900.0  # type: ignore[assignment]
        signals = replace(pool.signals(), types=(TypeState(type="B200", replicas=8, ready=8),))
        decision, memory = decide(pool.policy, signals, pool.memory, pool.now_s)
        assert decision.reason is Reason.INVALID_POLICY
        assert words in decision.message
        assert decision.wanted.get("B200", 8) == 8
        # A policy that is put right goes on from there.
        assert decide(policy(), pool.signals(), memory, pool.now_s + TICK_S)[0].total >= 8
