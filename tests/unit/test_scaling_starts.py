"""The autoscaler and what comes of its decisions: replicas that start or do not, gates, GPU types without room."""

import math
from itertools import pairwise

import pytest

from sglpool.scaling import Memory, Reason, decide
from support.scaling import START_S, TICK_S, WINDOW_S, Pool, policy, settled, two_types


class TestStarts:
    def test_a_start_counts_for_twice_its_cold_start_and_is_then_replaced(self) -> None:
        pool = Pool(policy(), load=90.0).fill(B200=8)
        pool.tick()
        pool.replicas["B200"][9].ready_s = math.inf
        assert pool.run(1200.0).total == 10
        assert pool.run(2 * TICK_S).total == 11
        assert pool.decisions[-1].inputs["failedReplicas"] == 1

    def test_a_pool_whose_replicas_do_not_start_stops_growing(self) -> None:
        pool = Pool(policy(), load=300.0, broken={"B200"}).fill(B200=4)
        pool.run(4 * 3600.0)
        assert pool.decisions[-1].reason is Reason.STARTS_FAIL
        # 34 would carry the load; that none of them starts is known after 20 minutes.
        size = pool.wanted["B200"]
        assert size <= 34
        assert pool.run(3600.0).total == size

    def test_a_minimum_that_does_not_start_is_not_made_up_for_by_more_of_the_same(self) -> None:
        pool = Pool(policy(least=1, most=9), load=0.0, broken={"B200"})
        assert pool.run(3 * 3600.0).total == 1

    def test_starts_that_were_seen_make_the_cold_start(self) -> None:
        pool = Pool(policy(), load=90.0, cold_start_s=120.0).fill(B200=8)
        pool.run(300.0)
        assert pool.memory.starts["B200"] == (pytest.approx(120.0, abs=TICK_S),) * 2
        pool.broken, pool.load = {"B200"}, 110.0
        pool.run(90.0)
        size = pool.wanted["B200"]
        # Twice 120 s, not twice 600 s.
        assert pool.run(240.0).total > size

    def test_quick_starts_do_not_make_a_slower_one_a_failure(self) -> None:
        pool = Pool(policy(), load=90.0, cold_start_s=5.0).fill(B200=8)
        pool.run(120.0)
        pool.cold_start_s, pool.load = 110.0, 99.0
        assert pool.run(600.0).total == 11

    def test_a_replica_that_was_ready_before_is_not_a_start(self) -> None:
        pool = settled(load=63.0, replicas=8)
        pool.replicas["B200"][2].since_s = pool.now_s
        pool.replicas["B200"][2].ready_s = pool.now_s + 20.0
        pool.run(120.0)
        assert pool.memory.starts.get("B200", ()) == ()

    @pytest.mark.parametrize("silent_s", [0.0, 10.0, 900.0], ids=["polled", "not polled yet", "under a gate"])
    def test_a_start_ends_when_the_replica_is_ready_not_when_it_gets_traffic(self, silent_s: float) -> None:
        pool = Pool(policy(), load=90.0, silent_s=silent_s).fill(B200=8)
        pool.run(600.0 + silent_s + 4 * TICK_S)
        assert pool.memory.starts["B200"] == (pytest.approx(600.0, abs=2 * TICK_S),) * 2
        assert pool.wanted["B200"] == 10, "none of them failed"

    def test_a_minimum_that_is_not_met_is_the_reason_to_grow_not_the_load(self) -> None:
        pool = Pool(policy(*two_types(), least=4), load=0.0, room={"B200": 1}).fill(B200=1)
        pool.run(600.0)
        (grown,) = [one for one in pool.decisions if "more B300" in one.message]
        assert grown.reason is Reason.SPILLED
        pool = Pool(policy(least=2), load=0.0, broken={"B200"}).fill(B200=1)
        pool.run(3600.0)
        reasons = {one.reason for one in pool.decisions if "more B200" in one.message}
        assert reasons <= {Reason.BOUNDS}

    def test_a_start_during_which_the_clock_jumped_is_not_timed(self) -> None:
        pool = Pool(policy(), load=90.0).fill(B200=8)
        pool.run(60.0)
        pool.now_s += 200.0
        pool.run(900.0)
        assert pool.memory.starts.get("B200", ()) == ()

    def test_pods_that_are_never_made_count_for_as_long_as_a_start(self) -> None:
        pool = Pool(policy(), load=90.0).fill(B200=8)
        signals, memory = pool.signals(), Memory()
        totals = []
        for tick in range(90):
            decision, memory = decide(pool.policy, signals, memory, START_S + tick * TICK_S)
            totals.append(decision.total)
        assert totals[79] == 10
        assert totals[-1] > 10


class TestGates:
    """Replicas whose revision has not passed its gate: ready, and without traffic."""

    def test_they_are_no_capacity_that_serves_but_one_that_comes(self) -> None:
        pool = Pool(policy(), load=60.0, kv_share=0.9, silent_s=math.inf).fill(B200=8)
        pool.replicas["B200"][7].ready_s = pool.now_s - 60.0
        decision = pool.tick()
        assert (decision.inputs["readyReplicas"], decision.inputs["startingReplicas"]) == (7, 1)
        assert decision.inputs["capacityRequests"] == 80
        # Of seven, not of eight.
        assert decision.inputs["needRequests"] == pytest.approx(70.0 * 0.9 / 0.8)

    def test_nothing_shrinks_while_a_gate_runs(self) -> None:
        pool = settled(load=9.0, replicas=10)
        size = pool.wanted["B200"]
        pool.silent_s = 3600.0
        pool.replicas["B200"][-1].ready_s = pool.now_s
        decision = pool.run(900.0)
        assert (decision.total, decision.reason) == (size, Reason.REPLICAS_STARTING)

    def test_a_gate_that_takes_longer_than_two_starts_is_not_waited_for(self) -> None:
        pool = Pool(policy(), load=70.0, silent_s=math.inf).fill(B200=8)
        pool.replicas["B200"][7].ready_s = pool.now_s
        assert pool.run(1200.0).total == 8
        assert pool.run(60.0).total > 8


class TestGPUTypes:
    def test_growth_goes_by_preference_within_each_maximum(self) -> None:
        pool = Pool(policy(*two_types(max_replicas=3)), load=80.0).fill(B200=2)
        assert dict(pool.tick().wanted) == {"B200": 3, "B300": 3}

    def test_shrinking_goes_the_other_way_round(self) -> None:
        pool = Pool(policy(*two_types(max_replicas=3)), load=17.0).fill(B200=3, B300=4)
        pool.run(2 * WINDOW_S)
        assert pool.wanted == {"B200": 2, "B300": 0}
        assert all(one.wanted["B200"] == 3 for one in pool.decisions if one.wanted["B300"])

    def test_pods_without_a_node_for_five_minutes_spill_to_the_next_type(self) -> None:
        pool = Pool(policy(*two_types()), load=90.0, room={"B200": 8}).fill(B200=8)
        assert pool.run(300.0).wanted == {"B200": 10, "B300": 0}
        decision = pool.run(2 * TICK_S)
        assert dict(decision.wanted) == {"B200": 10, "B300": 1}
        assert Reason.SPILLED in {one.reason for one in pool.decisions}

    def test_and_come_back_when_the_preferred_type_has_room(self) -> None:
        pool = Pool(policy(*two_types()), load=90.0, room={"B200": 8}).fill(B200=8)
        pool.run(1800.0)
        assert pool.wanted == {"B200": 10, "B300": 1}
        pool.room = {}
        pool.run(3600.0)
        assert pool.wanted == {"B200": 10, "B300": 0}
        # The stand-in went only after the preferred replicas were there.
        went = next(index for index, one in enumerate(pool.decisions) if index > 130 and one.wanted["B300"] == 0)
        assert pool.decisions[went].inputs["startingReplicas"] == 0
        assert pool.decisions[went].inputs["unschedulableReplicas"] == 0

    def test_what_came_for_more_load_is_no_stand_in(self) -> None:
        pool = Pool(policy(*two_types(max_replicas=10)), load=90.0, room={"B200": 8}).fill(B200=8)
        pool.run(600.0)
        pool.load = 160.0
        pool.run(1800.0)
        assert pool.wanted == {"B200": 10, "B300": 5}
        # One B300 stands in for two B200; four came for the load.
        assert pool.memory.spilled["B300"] <= 2

    def test_a_pool_that_lost_its_memory_comes_back_too(self) -> None:
        pool = Pool(policy(*two_types()), load=90.0).fill(B200=8, B300=1)
        pool.run(3 * 3600.0)
        assert pool.wanted["B300"] == 0
        assert min(one.total for one in pool.decisions) >= 9

    def test_coming_back_takes_one_replica_in_a_window(self) -> None:
        pool = Pool(policy(*two_types()), load=90.0, cold_start_s=60.0).fill(B200=2, B300=4)
        pool.run(3 * 3600.0)
        assert pool.wanted["B300"] == 0
        sizes = [one.wanted["B200"] for one in pool.decisions]
        tries = [index for index, (one, other) in enumerate(pairwise(sizes)) if other > one]
        assert min(other - one for one, other in pairwise(tries)) >= WINDOW_S / TICK_S

    def test_coming_back_waits_when_the_preferred_type_has_still_no_room(self) -> None:
        pool = Pool(policy(*two_types()), load=90.0, room={"B200": 8}).fill(B200=8, B300=1)
        pool.run(4 * 3600.0)
        assert pool.wanted["B300"] == 1
        assert pool.wanted["B200"] <= 10

    def test_at_the_maximum_pods_without_a_node_give_their_places_to_the_next_type(self) -> None:
        pool = Pool(policy(*two_types(), most=10), load=95.0, room={"B200": 8}).fill(B200=8)
        pool.run(600.0)
        assert pool.wanted == {"B200": 8, "B300": 2}
        assert all(one.total <= 10 for one in pool.decisions)

    def test_a_type_whose_starts_fail_is_passed_by(self) -> None:
        pool = Pool(policy(*two_types()), load=90.0, broken={"B200"}).fill(B200=4)
        pool.run(3600.0)
        assert pool.wanted["B300"] >= 2

    def test_a_type_that_does_not_fit_never_grows(self) -> None:
        pool = Pool(policy(*two_types(usable=False, min_replicas=2)), load=90.0).fill(B300=1)
        assert dict(pool.tick().wanted) == {"B200": 0, "B300": 5}

    def test_the_pools_minimum_is_met_by_another_type_when_the_first_has_no_room(self) -> None:
        pool = Pool(policy(*two_types(), least=4), load=0.0, room={"B200": 1}).fill(B200=1)
        pool.run(600.0)
        assert pool.wanted == {"B200": 4, "B300": 3}

    def test_nothing_more_is_asked_for_when_no_type_has_room(self) -> None:
        pool = Pool(policy(), load=300.0, room={"B200": 4}).fill(B200=4)
        pool.run(600.0)
        assert pool.wanted == {"B200": 8}
        assert pool.decisions[-1].reason is Reason.NO_ROOM
