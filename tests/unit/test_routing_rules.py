"""Each rule of the routing policy on a small pool: when it decides, when it does not, and what the decision says."""

import random
from dataclasses import replace

import pytest

from sglpool.routing.estimate import MIN_MISSES, note_prefill
from sglpool.routing.load import prefill_wait_s
from sglpool.routing.policy import lapse, pick, release
from sglpool.routing.state import MIXED_PICKS, RoutingState
from sglpool.routing.types import DEFAULT_CONFIG, ConversationKey, Decision, Outcome, PickRequest, Replica, Rule

KEY = ConversationKey("session", "main")
LONG = 400_000
"""Bytes of a request of 100k tokens."""
SHORT = 400
"""The same of one that takes no time to read."""


class Pool:
    """Three replicas, a router, and a clock that the test moves."""

    def __init__(self, *uids: str, **fields: object) -> None:
        self.replicas = {uid: Replica(uid=uid, address=f"10.0.0.1:{uid}", **fields) for uid in uids or "abc"}  # type: ignore[arg-type]
        self.state = RoutingState()
        self.rng = random.Random(3)
        self.now_s = 10_000.0

    def pick(self, body_bytes: int = LONG, key: ConversationKey | None = KEY) -> Decision:
        request = PickRequest(key, body_bytes, "fallback" if key is None else f"{key.session}/{key.conversation}")
        return pick(self.state, request, self.replicas, self.now_s, self.rng)

    def release(self, uid: str, body_bytes: int = LONG, key: ConversationKey | None = KEY, **more: object) -> None:
        fields: dict[str, object] = {"prompt_tokens": body_bytes // 4, "completion_tokens": 500, "finish": "tool_calls"}
        outcome = Outcome(key=key, replica_uid=uid, body_bytes=body_bytes, **(fields | more))  # type: ignore[arg-type]
        release(self.state, self.replicas, outcome, self.now_s)

    def turn(self, body_bytes: int = LONG, key: ConversationKey | None = KEY, **more: object) -> Decision:
        """A whole request: pick, some seconds, release."""
        decision = self.pick(body_bytes, key)
        assert decision.home is not None
        self.now_s += 5
        self.release(decision.home, body_bytes, key, **more)
        return decision

    def settle(self, uid: str, body_bytes: int = LONG) -> Replica:
        """Give the conversation a warm home."""
        for other in self.replicas.values():
            other.healthy = other.uid == uid
        self.turn(body_bytes)
        for other in self.replicas.values():
            other.healthy = True
        return self.replicas[uid]


def test_a_new_conversation_goes_to_the_lowest_score() -> None:
    pool = Pool()
    pool.replicas["a"].others_in_flight = 2
    pool.replicas["b"].others_in_flight = 1
    decision = pool.pick()
    assert (decision.home, decision.second, decision.rule) == ("c", "b", Rule.NEW)
    assert not decision.moved
    assert decision.inputs["load_next"] == 0


def test_kv_in_use_counts_as_up_to_one_request() -> None:
    pool = Pool("a", "b", kv_total_tokens=100)
    pool.replicas["a"].kv_used_tokens = 90
    assert pool.pick().home == "b"


def test_a_conversation_that_waits_for_its_tools_counts_for_a_minute() -> None:
    pool = Pool("a", "b")
    pool.settle("a")
    pool.replicas["b"].kv_total_tokens = 100
    pool.replicas["b"].kv_used_tokens = 30
    other = ConversationKey("other", "")
    assert pool.turn(key=other).home == "b"
    pool.now_s += DEFAULT_CONFIG.idle_pending_s
    third = ConversationKey("third", "")
    assert pool.turn(key=third).home == "a"


@pytest.mark.parametrize("finish", ["stop", "length", "abort"])
def test_a_conversation_that_waits_for_its_user_does_not_count(finish: str) -> None:
    pool = Pool("a", "b")
    home = pool.turn(finish=finish).home
    assert home is not None
    assert pool.state.pending_on(home) == 0


def test_ties_go_to_the_replica_with_fewer_conversations() -> None:
    for seed in range(20):
        pool = Pool("a", "b")
        pool.rng = random.Random(seed)
        first = pool.turn(finish="stop").home
        assert pool.pick(key=ConversationKey("second", "")).home != first


def test_a_crowded_session_looks_for_another_replica() -> None:
    pool = Pool("a", "b")
    pool.replicas["b"].healthy = False
    for n in range(4):
        pool.pick(SHORT, key=ConversationKey("fat", f"agent{n}"))
    pool.replicas["b"].healthy = True
    pool.replicas["b"].others_in_flight = 5
    assert pool.pick(SHORT, key=ConversationKey("fat", "another")).home == "b"
    assert pool.pick(SHORT, key=ConversationKey("slim", "")).home == "a"


def test_a_session_of_many_conversations_spreads() -> None:
    pool = Pool("a", "b")
    homes = [pool.pick(key=ConversationKey("fat", f"agent{n}")).home for n in range(12)]
    assert homes.count("a") == homes.count("b") == 6
    # Each conversation keeps its own home, however crowded the session is.
    for n in range(12):
        pool.release(str(homes[n]), key=ConversationKey("fat", f"agent{n}"))
    assert [pool.turn(key=ConversationKey("fat", f"agent{n}")).home for n in range(12)] == homes


def test_a_heavier_replica_takes_more() -> None:
    pool = Pool("a", "b")
    pool.replicas["b"].weight = 2.0
    homes = [pool.pick(key=ConversationKey(f"s{n}", "")).home for n in range(30)]
    assert homes.count("b") == 20


def test_a_new_replica_ramps_up() -> None:
    pool = Pool("old", "new")
    pool.replicas["new"].ready_since_s = pool.now_s
    early = [pool.pick(SHORT, key=ConversationKey(f"s{n}", "")).home for n in range(10)]
    assert early.count("new") == 1
    pool.now_s += DEFAULT_CONFIG.ramp_s
    later = [pool.pick(SHORT, key=ConversationKey(f"t{n}", "")).home for n in range(8)]
    assert later == ["new"] * 8


def test_a_new_replica_does_not_lose_what_lives_there_because_it_is_new() -> None:
    pool = Pool("old", "new")
    pool.replicas["new"].ready_since_s = pool.now_s
    pool.settle("new", 40_000)
    pool.replicas["new"].others_in_flight = 3
    pool.replicas["old"].others_in_flight = 4
    decision = pool.pick(40_000)
    assert (decision.home, decision.rule) == ("new", Rule.STAY)


def test_a_pool_that_is_new_as_a_whole_is_not_crowded() -> None:
    pool = Pool("a", "b")
    for replica in pool.replicas.values():
        replica.ready_since_s = pool.now_s
    pool.settle("a", 40_000)
    pool.replicas["a"].others_in_flight = 2
    assert pool.pick(40_000).rule is Rule.STAY
    pool.release("a", 40_000)
    pool.replicas["a"].others_in_flight = 3
    assert pool.pick(40_000).rule is Rule.SPILL


def test_a_compacted_conversation_leaves_a_new_replica_only_if_that_is_the_busier_one() -> None:
    pool = Pool("old", "new")
    pool.replicas["new"].ready_since_s = pool.now_s
    pool.settle("new")
    pool.replicas["new"].others_in_flight = 1
    pool.replicas["old"].others_in_flight = 2
    assert pool.pick(LONG // 3).rule is Rule.STAY
    pool.release("new", LONG // 3)
    pool.replicas["new"].others_in_flight = 3
    assert pool.pick(LONG // 10).rule is Rule.FREE_MOVE


def test_a_prefix_is_worth_the_same_on_a_new_replica() -> None:
    pool = Pool("a", "b", "c")
    pool.settle("b")
    pool.settle("a")
    for replica in pool.replicas.values():
        replica.ready_since_s = pool.now_s
    pool.replicas["a"].healthy = False
    pool.replicas["b"].others_in_flight = 2
    decision = pool.pick()
    assert (decision.home, decision.second, decision.rule) == ("b", "c", Rule.FAILOVER)


def test_a_new_replica_is_no_place_to_spill_to_before_its_ramp() -> None:
    pool = Pool("old", "new")
    pool.settle("old", 40_000)
    pool.replicas["new"].ready_since_s = pool.now_s
    pool.replicas["old"].others_in_flight = 6
    pool.replicas["new"].others_in_flight = 1
    assert pool.pick(40_000).rule is Rule.STAY
    pool.release("old", 40_000)
    pool.now_s += DEFAULT_CONFIG.ramp_s
    assert pool.pick(40_000).rule is Rule.SPILL


def test_a_draining_home_is_left_at_once_for_a_replica_that_holds_as_much() -> None:
    pool = Pool("a", "b", "c")
    pool.settle("b")
    pool.settle("a")
    pool.replicas["a"].draining = True
    pool.replicas["b"].others_in_flight = 2
    decision = pool.pick()
    assert (decision.home, decision.rule, decision.forced) == ("b", Rule.FREE_MOVE, False)


def test_home_is_kept_while_it_is_warm() -> None:
    pool = Pool()
    pool.settle("a")
    pool.replicas["a"].others_in_flight = 12
    decision = pool.pick(LONG + 8000)
    assert (decision.home, decision.rule, decision.moved) == ("a", Rule.STAY, False)
    assert decision.second in ("b", "c")
    assert decision.inputs["warm_tokens"] == pytest.approx(100_500)


def test_a_lost_home_is_replaced_for_good() -> None:
    pool = Pool()
    pool.settle("a")
    pool.replicas["a"].healthy = False
    decision = pool.turn(LONG + 4000)
    assert (decision.rule, decision.moved, decision.forced) == (Rule.FAILOVER, True, True)
    pool.replicas["a"].healthy = True
    assert pool.pick(LONG + 8000).home == decision.home


def test_a_pod_made_anew_is_another_replica() -> None:
    pool = Pool("a", "b")
    pool.settle("a")
    del pool.replicas["a"]
    pool.replicas["a2"] = Replica(uid="a2", address="10.0.0.1:a")
    assert pool.pick().rule is Rule.FAILOVER


def test_an_unproven_revision_gets_nothing() -> None:
    pool = Pool("a", "b")
    pool.replicas["a"].proven = False
    assert {pool.pick(key=ConversationKey(f"s{n}", "")).home for n in range(5)} == {"b"}


def test_a_compacted_conversation_moves_if_another_replica_is_less_loaded() -> None:
    pool = Pool("a", "b")
    pool.settle("a")
    pool.replicas["a"].others_in_flight = 2
    pool.replicas["b"].others_in_flight = 1
    decision = pool.pick(LONG // 3)
    assert (decision.home, decision.rule, decision.moved, decision.forced) == ("b", Rule.FREE_MOVE, True, False)


def test_a_compacted_conversation_stays_where_the_load_is_even() -> None:
    pool = Pool("a", "b")
    pool.settle("a")
    assert pool.pick(LONG // 3).rule is Rule.STAY


def test_a_short_aside_is_no_reset() -> None:
    pool = Pool("a", "b")
    pool.settle("a")
    pool.replicas["a"].others_in_flight = 2
    assert pool.turn(2_000).rule is Rule.STAY
    decision = pool.pick(LONG + 1000)
    assert decision.rule is Rule.STAY
    assert decision.inputs["warm_tokens"] > 99_000


def test_concurrent_requests_of_different_length_are_no_reset() -> None:
    pool = Pool("a", "b")
    pool.settle("a")
    pool.replicas["a"].others_in_flight = 2
    first, second = pool.pick(LONG), pool.pick(LONG // 4)
    pool.release("a", LONG)
    pool.release("a", LONG // 4)
    assert [first.rule, second.rule, pool.pick(LONG).rule] == [Rule.STAY] * 3


def test_a_key_that_runs_one_at_a_time_again_is_one_conversation_again() -> None:
    pool = Pool("a", "b")
    pool.settle("a")
    pool.pick(LONG)
    pool.pick(LONG // 4)
    pool.release("a", LONG)
    pool.release("a", LONG // 4)
    for _ in range(MIXED_PICKS):
        pool.turn(LONG)
    pool.replicas["a"].others_in_flight = 2
    assert pool.pick(LONG // 3).rule is Rule.FREE_MOVE


def test_a_length_that_comes_back_returns_to_where_its_prefix_is() -> None:
    pool = Pool("a", "b")
    pool.settle("a")
    pool.replicas["a"].others_in_flight = 2
    assert pool.turn(LONG // 3).home == "b"
    pool.replicas["a"].others_in_flight = 0
    decision = pool.turn(LONG + 4000)
    assert (decision.home, decision.rule) == ("a", Rule.FREE_MOVE)
    assert decision.inputs["held_tokens"] > 99_000


def test_after_a_long_aside_the_home_still_has_what_came_before_it() -> None:
    pool = Pool("a", "b")
    pool.settle("a")
    assert pool.turn(LONG // 4, cached_tokens=15_000).home == "a"
    pool.replicas["a"].others_in_flight = 2
    decision = pool.pick(LONG + 4000)
    assert (decision.home, decision.rule) == ("a", Rule.STAY)
    assert decision.inputs["warm_tokens"] > 99_000


def test_what_grows_far_beyond_a_compaction_is_not_what_was_there_before_it() -> None:
    pool = Pool("a", "b")
    pool.settle("a")
    assert pool.turn(LONG // 4, cached_tokens=15_000).home == "a"
    pool.replicas["a"].others_in_flight = 2
    assert pool.pick(LONG * 2).rule is Rule.FREE_MOVE


def test_after_an_aside_that_was_answered_elsewhere_it_goes_back_to_a_home_that_is_busier_by_now() -> None:
    pool = Pool("a", "b")
    pool.settle("a")
    pool.replicas["a"].others_in_flight = 2
    assert pool.turn(LONG // 3).home == "b"
    pool.replicas["a"].others_in_flight = 4
    decision = pool.pick(LONG + 4000)
    assert (decision.home, decision.rule) == ("a", Rule.FREE_MOVE)
    assert decision.inputs["held_tokens"] > 99_000


def test_what_is_longer_than_the_prompt_is_no_prefix_of_it() -> None:
    pool = Pool("a", "b")
    pool.settle("a")
    pool.replicas["a"].others_in_flight = 2
    pool.turn(LONG // 3)
    pool.turn(LONG * 8 // 10)
    # Worth a return, not worth a prefill of 80,000 tokens.
    pool.replicas["a"].others_in_flight, pool.replicas["b"].others_in_flight = 0, 6
    decision = pool.pick(LONG * 8 // 10)
    assert (decision.home, decision.rule) == ("b", Rule.STAY)


def test_a_holder_that_is_much_busier_is_not_worth_it() -> None:
    pool = Pool()
    pool.settle("a")
    pool.pick()
    pool.release("a", served_uid="c")
    pool.replicas["a"].healthy = False
    pool.replicas["c"].others_in_flight = 40
    assert pool.pick().home == "b"


def test_a_moved_conversation_is_retried_on_the_home_it_left() -> None:
    pool = Pool()
    pool.settle("a")
    pool.replicas["a"].others_in_flight = 2
    decision = pool.pick(LONG // 3)
    assert decision.rule is Rule.FREE_MOVE
    assert decision.second == "a"


def test_a_move_that_never_came_leaves_no_belief_in_warm_kv() -> None:
    pool = Pool("a", "b")
    pool.settle("a")
    pool.replicas["a"].others_in_flight = 50
    moved = pool.pick()
    assert (moved.rule, moved.home) == (Rule.SPILL, "b")
    lapse(pool.state, pool.replicas, KEY, "b", pool.now_s)
    pool.replicas["a"].others_in_flight = 0
    decision = pool.pick()
    assert (decision.rule, decision.home) == (Rule.FREE_MOVE, "a")


def test_a_replica_that_many_will_come_back_to_is_no_place_to_move_to() -> None:
    pool = Pool("a", "b")
    pool.settle("a", 40_000)
    pool.replicas["a"].healthy = False
    for n in range(12):
        pool.turn(key=ConversationKey(f"s{n}", ""))
        pool.now_s -= 5
    pool.now_s += 5
    pool.replicas["a"].healthy = True
    pool.replicas["a"].others_in_flight = 7
    assert pool.pick(15_000).rule is Rule.STAY  # A reset, which would move freely.
    lapse(pool.state, pool.replicas, KEY, "a", pool.now_s)
    assert pool.pick(40_000).rule is Rule.STAY
    lapse(pool.state, pool.replicas, KEY, "a", pool.now_s)
    pool.now_s += DEFAULT_CONFIG.idle_pending_s
    note_prefill(pool.state, pool.replicas["b"], 0, pool.now_s)
    assert pool.pick(40_000).rule is Rule.SPILL


def test_evictions_teach_how_long_kv_stays() -> None:
    pool = Pool("a", "b")
    pool.settle("a")
    for _ in range(MIN_MISSES):
        assert "a" not in pool.state.residency_s
        pool.now_s += 1800
        pool.turn(cached_tokens=0)
    assert pool.state.residency_s["a"] == pytest.approx(1800)
    pool.replicas["a"].others_in_flight = 2
    pool.now_s += 1700
    assert pool.turn(cached_tokens=100_000).rule is Rule.STAY
    pool.now_s += 1900
    assert pool.pick().rule is Rule.FREE_MOVE


def test_a_hit_after_as_long_a_pause_contradicts_misses() -> None:
    pool = Pool("a")
    pool.turn()
    for cached_tokens in (0, 0, 100_000, 0, 0):
        pool.now_s += 600
        pool.turn(cached_tokens=cached_tokens)
        pool.now_s += 10
    assert pool.state.residency_s == {}


def test_a_rewritten_history_is_no_eviction() -> None:
    pool = Pool("a")
    for n in range(10):
        pool.turn(LONG - 1000 * n, cached_tokens=0)
        pool.now_s += 600
    assert pool.state.residency_s == {}


def test_hits_after_long_pauses_lengthen_what_was_learned() -> None:
    pool = Pool("a")
    pool.turn()
    for _ in range(MIN_MISSES):
        pool.now_s += 600
        pool.turn(cached_tokens=0)
    pool.now_s += 3600
    pool.turn(cached_tokens=100_000)
    assert pool.state.residency_s["a"] > 1000


def test_a_miss_right_after_a_turn_says_nothing_about_residency() -> None:
    pool = Pool("a")
    pool.turn()
    pool.now_s += 1
    pool.turn(cached_tokens=0)
    assert pool.state.residency_s == {}


def test_spill_is_priced_by_the_prefill_it_costs() -> None:
    pool = Pool("a", "b")
    pool.settle("a", 320_000)  # 80,000 tokens: 4.4 s anew, worth a difference of 17.5.
    pool.replicas["a"].others_in_flight = 17
    decision = pool.pick(320_000)
    assert decision.rule is Rule.STAY
    pool.release("a", 320_000)
    pool.replicas["a"].others_in_flight = 18
    decision = pool.pick(320_000)
    assert (decision.rule, decision.home, decision.moved, decision.forced) == (Rule.SPILL, "b", True, False)
    assert decision.inputs["migration_s"] == pytest.approx(4.4, rel=0.05)


def test_what_all_prompts_share_need_not_be_computed_anew() -> None:
    pool = Pool("a", "b")
    for number in range(60):
        pool.turn(80_000, ConversationKey(f"s{number}", ""), cached_tokens=15_000, finish="stop")
    assert pool.state.shared_tokens == pytest.approx(15_000, rel=0.05)
    pool.settle("a", 320_000)
    pool.replicas["a"].others_in_flight = 16
    decision = pool.pick(320_000)
    assert decision.rule is Rule.SPILL
    assert decision.inputs["migration_s"] == pytest.approx(3.9, rel=0.05)


def test_a_cached_prefix_of_a_known_conversation_says_nothing_about_what_all_share() -> None:
    pool = Pool("a")
    pool.turn(80_000, cached_tokens=0)
    pool.turn(80_000, cached_tokens=19_000)
    assert pool.state.shared_tokens == 0


def test_new_conversations_stay_away_from_a_replica_that_reads_a_long_prompt() -> None:
    pool = Pool("a", "b")
    pool.replicas["b"].others_in_flight = 1
    note_prefill(pool.state, pool.replicas["a"], 100_000, pool.now_s)
    assert pool.pick().home == "b"
    # What has been sent counts until a poll says how much of it is left.
    assert pool.pick(key=ConversationKey("second", "")).home == "a"
    assert pool.pick(key=ConversationKey("third", "")).home == "b"
    pool.now_s += 60.0
    assert prefill_wait_s(pool.replicas["a"], pool.now_s) == 0


def test_a_poll_says_what_is_left_to_prefill() -> None:
    pool = Pool("a")
    pool.pick()
    assert prefill_wait_s(pool.replicas["a"], pool.now_s) == pytest.approx(6.25, rel=0.05)
    note_prefill(pool.state, pool.replicas["a"], 50_000, pool.now_s)
    assert 1.5 < prefill_wait_s(pool.replicas["a"], pool.now_s) < 3.5
    note_prefill(pool.state, pool.replicas["a"], 0, pool.now_s)
    assert prefill_wait_s(pool.replicas["a"], pool.now_s) == 0


def test_the_second_half_of_a_long_prompt_takes_longer_than_the_first() -> None:
    pool = Pool("a")
    replica = pool.replicas["a"]
    note_prefill(pool.state, replica, 200_000, pool.now_s)
    whole_s = prefill_wait_s(replica, pool.now_s)
    note_prefill(pool.state, replica, 150_000, pool.now_s)
    note_prefill(pool.state, replica, 100_000, pool.now_s)
    assert prefill_wait_s(replica, pool.now_s) > 0.6 * whole_s
    # The next prompt begins at its beginning.
    note_prefill(pool.state, replica, 0, pool.now_s)
    note_prefill(pool.state, replica, 100_000, pool.now_s)
    assert prefill_wait_s(replica, pool.now_s) < 0.4 * whole_s


def test_a_warm_turn_hardly_adds_to_the_prefill_of_its_home() -> None:
    pool = Pool("a")
    pool.settle("a")
    note_prefill(pool.state, pool.replicas["a"], 0, pool.now_s)
    pool.pick(LONG + 4000)
    assert 0 < prefill_wait_s(pool.replicas["a"], pool.now_s) < 0.2


def test_a_short_conversation_does_not_wait_behind_a_long_prompt() -> None:
    pool = Pool("a", "b")
    pool.settle("a", 80_000)
    pool.state.spill_tokens = 0.0
    note_prefill(pool.state, pool.replicas["a"], 100_000, pool.now_s)
    assert pool.pick(80_000).rule is Rule.STAY
    pool.release("a", 80_000)
    pool.state.spill_tokens = 1.0
    decision = pool.pick(80_000)
    assert (decision.home, decision.second, decision.rule) == ("b", "a", Rule.SPILL)
    assert decision.inputs["saved_s"] == pytest.approx(6.25, rel=0.1)
    assert pool.state.spill_tokens < 1.0


@pytest.mark.parametrize(("waiting_tokens", "there_tokens"), [(60_000, 0), (100_000, 60_000)])
def test_a_wait_that_is_short_or_no_longer_than_elsewhere_is_no_reason_to_leave(
    waiting_tokens: int, there_tokens: int
) -> None:
    pool = Pool("a", "b")
    pool.settle("a", 80_000)
    note_prefill(pool.state, pool.replicas["a"], waiting_tokens, pool.now_s)
    note_prefill(pool.state, pool.replicas["b"], there_tokens, pool.now_s)
    assert pool.pick(80_000).rule is Rule.STAY


def test_a_long_conversation_waits_rather_than_computing_itself_anew() -> None:
    pool = Pool("a", "b")
    pool.settle("a")
    note_prefill(pool.state, pool.replicas["a"], 150_000, pool.now_s)
    assert prefill_wait_s(pool.replicas["a"], pool.now_s) > 10
    assert pool.pick().rule is Rule.STAY


def test_what_other_routers_wait_for_counts_too() -> None:
    pool = Pool("a", "b")
    pool.replicas["a"].others_pending = 2
    pool.replicas["b"].others_in_flight = 1
    assert pool.pick().home == "b"


def test_a_conversation_that_came_back_elsewhere_is_waited_for_no_longer() -> None:
    pool = Pool("a")
    pool.turn()
    pool.state.came_back_elsewhere(ConversationKey("unknown", ""), pool.now_s)
    pool.state.came_back_elsewhere(KEY, pool.now_s - 0.1)
    assert pool.state.pending_on("a") == 1
    pool.state.came_back_elsewhere(KEY, pool.now_s + 0.1)
    assert pool.state.pending_on("a") == 0
    assert pool.turn().home == "a"


def test_a_short_conversation_spills_from_a_difference_of_three() -> None:
    pool = Pool("a", "b")
    pool.settle("a", 40_000)
    pool.replicas["a"].others_in_flight = 2
    assert pool.pick(40_000).rule is Rule.STAY
    pool.release("a", 40_000)
    pool.replicas["a"].others_in_flight = 3
    assert pool.pick(40_000).rule is Rule.SPILL


def test_a_conversation_is_not_driven_out_by_requests_of_its_own() -> None:
    pool = Pool("a", "b")
    pool.settle("a", 40_000)
    pool.replicas["a"].others_in_flight = 2
    assert [pool.pick(40_000).rule for _ in range(3)] == [Rule.STAY] * 3
    for _ in range(3):
        pool.release("a", 40_000)
    pool.replicas["a"].others_in_flight = 4
    assert pool.pick(40_000).rule is Rule.SPILL


def test_a_long_warm_conversation_practically_never_spills() -> None:
    pool = Pool("a", "b")
    pool.settle("a")
    pool.replicas["a"].others_in_flight = 24
    assert pool.pick().rule is Rule.STAY
    pool.release("a")
    pool.replicas["a"].others_in_flight = 26
    assert pool.pick().rule is Rule.SPILL


def test_a_spilled_conversation_is_re_homed_and_finds_its_way_back_cheap() -> None:
    pool = Pool("a", "b")
    pool.settle("a")
    pool.replicas["a"].others_in_flight = 30
    assert pool.turn().home == "b"
    pool.replicas["a"].others_in_flight = 0
    assert pool.turn().home == "b"
    # Its first home still holds all but the last turns, so that a small difference is worth it, and no budget is asked.
    pool.state.spill_tokens = 0.0
    pool.replicas["b"].others_in_flight = 2
    assert pool.turn().home == "b"
    pool.replicas["b"].others_in_flight = 3
    decision = pool.pick()
    assert (decision.home, decision.rule) == ("a", Rule.FREE_MOVE)
    assert decision.inputs["held_tokens"] > 99_000


def test_a_conversation_does_not_go_back_for_a_history_that_was_rewritten_meanwhile() -> None:
    pool = Pool("a", "b")
    pool.settle("a")
    pool.replicas["a"].others_in_flight = 30
    assert pool.turn(cached_tokens=0).home == "b"
    pool.replicas["a"].others_in_flight = 0
    # As long as before, but other words: the home, which had all of it, finds the shared beginning alone.
    assert pool.turn(cached_tokens=15_000).home == "b"
    pool.replicas["b"].others_in_flight = 5
    decision = pool.pick()
    assert (decision.home, decision.rule) == ("b", Rule.STAY)


def test_a_new_home_that_had_nothing_says_nothing_about_the_old_one() -> None:
    pool = Pool("a", "b")
    pool.settle("a")
    pool.replicas["a"].others_in_flight = 30
    assert pool.turn(cached_tokens=0).home == "b"
    assert pool.turn(cached_tokens=99_000).home == "b"
    pool.replicas["a"].others_in_flight = 0
    pool.replicas["b"].others_in_flight = 5
    assert pool.pick().inputs["held_tokens"] > 99_000


def test_a_thick_key_overflows_without_leaving_home() -> None:
    pool = Pool()
    pool.settle("a")
    homes = [pool.pick().home for _ in range(3)]
    assert homes == ["a"] * 3
    overflow = pool.pick()
    assert overflow.rule is Rule.THICK
    assert overflow.home in ("b", "c")
    assert not overflow.moved
    assert pool.state.conversations[KEY].home == "a"
    # What ran there left a prefix: the next one that finds home crowded goes to the same replica.
    pool.release(str(overflow.home))
    assert pool.pick().home == overflow.home


def test_overflow_fills_a_holder_and_then_goes_on() -> None:
    pool = Pool()
    pool.settle("a")
    pool.pick()
    pool.release("a", served_uid="b")
    assert [pool.pick().home for _ in range(7)] == ["a"] * 3 + ["b"] * 3 + ["c"]


def test_a_full_home_is_kept_and_the_request_goes_elsewhere() -> None:
    pool = Pool()
    pool.settle("a")
    pool.replicas["a"].others_in_flight = pool.replicas["a"].max_concurrent
    for uid in "bc":
        pool.replicas[uid].others_in_flight = 60
    decision = pool.pick()
    assert (decision.rule, decision.moved) == (Rule.FULL_HOME, False)
    assert {decision.home, decision.second} == {"b", "c"}
    assert pool.state.conversations[KEY].home == "a"


def test_a_replica_that_refused_is_left_alone_until_it_is_polled() -> None:
    pool = Pool()
    home = pool.settle("a")
    decision = pool.pick()
    assert decision.home == "a"
    pool.release("a", refused=True)
    assert home.refused
    away = pool.turn()
    assert (away.rule, away.moved) == (Rule.REFUSED_HOME, False)
    assert "a" not in (away.home, away.second)
    home.refused = False
    assert pool.pick().home == "a"


def test_a_refusal_teaches_nothing_about_the_conversation() -> None:
    pool = Pool("a")
    pool.settle("a")
    tokens = pool.state.conversations[KEY].ctx_tokens
    pool.pick(LONG * 2)
    pool.release("a", LONG * 2, refused=True, prompt_tokens=None)
    assert pool.state.conversations[KEY].ctx_tokens == tokens


def test_a_request_that_was_served_by_the_second_host_leaves_a_prefix_there() -> None:
    pool = Pool()
    pool.settle("a")
    pool.pick()
    pool.release("a", served_uid="c")
    pool.replicas["a"].healthy = False
    for uid, others in (("b", 0), ("c", 3)):
        pool.replicas[uid].others_in_flight = others
    assert pool.pick().home == "c"


def test_draining_homes_keep_their_conversations_until_the_deadline() -> None:
    pool = Pool()
    home = pool.settle("a")
    home.draining, home.drain_deadline_s = True, pool.now_s + 100
    assert pool.turn().rule is Rule.DRAIN_STAY
    assert pool.turn(key=ConversationKey("new", "")).home != "a"
    pool.now_s += 100
    decision = pool.turn()
    assert (decision.rule, decision.moved, decision.forced) == (Rule.DRAIN_MOVE, True, True)


def test_a_reset_leaves_a_draining_home_whatever_the_load() -> None:
    pool = Pool()
    home = pool.settle("a")
    home.draining = True
    for uid in "bc":
        pool.replicas[uid].others_in_flight = 9
    decision = pool.pick(LONG // 3)
    assert (decision.rule, decision.moved, decision.forced) == (Rule.FREE_MOVE, True, False)


def test_a_drain_that_is_taken_back_changes_nothing() -> None:
    pool = Pool()
    home = pool.settle("a")
    home.draining, home.drain_deadline_s = True, pool.now_s + 5
    pool.turn()
    home.draining, home.drain_deadline_s = False, None
    pool.now_s += 50
    assert pool.turn().rule is Rule.STAY


def test_at_the_deadline_a_conversation_stays_if_nobody_else_can_take_it() -> None:
    pool = Pool("a", "b")
    home = pool.settle("a")
    home.draining, home.drain_deadline_s = True, pool.now_s
    pool.replicas["b"].others_in_flight = pool.replicas["b"].max_concurrent
    assert pool.pick().rule is Rule.DRAIN_STAY


def test_everything_full_is_refused_with_a_time_that_spreads_clients() -> None:
    pool = Pool(max_concurrent=2)
    for n in range(6):
        assert pool.pick(key=ConversationKey(f"s{n}", "")).home is not None
    refused = [pool.pick(key=ConversationKey(f"late{n}", "")) for n in range(20)]
    assert {decision.rule for decision in refused} == {Rule.REFUSE}
    waits_s = [decision.retry_after_s for decision in refused]
    assert min(waits_s) >= DEFAULT_CONFIG.retry_after_s
    assert len(set(waits_s)) > 10
    assert sum(replica.own_in_flight for replica in pool.replicas.values()) == 6
    assert ConversationKey("late0", "") not in pool.state.conversations


def test_no_replica_at_all_is_not_worth_waiting_for() -> None:
    pool = Pool("a")
    pool.replicas["a"].healthy = False
    decision = pool.pick()
    assert (decision.home, decision.rule, decision.retry_after_s) == (None, Rule.REFUSE, 0.0)


def test_a_request_without_a_key_is_placed_and_forgotten() -> None:
    pool = Pool()
    decision = pool.pick(key=None)
    assert decision.rule is Rule.NEW
    assert pool.replicas[str(decision.home)].own_in_flight == 1
    pool.release(str(decision.home), key=None)
    assert pool.replicas[str(decision.home)].own_in_flight == 0
    assert not pool.state.conversations


def test_a_lapsed_reservation_gives_its_slot_back() -> None:
    pool = Pool("a")
    pool.pick()
    assert pool.state.conversations[KEY].in_flight == 1
    lapse(pool.state, pool.replicas, KEY, "a", pool.now_s)
    assert pool.replicas["a"].own_in_flight == 0
    assert pool.state.conversations[KEY].in_flight == 0
    assert pool.state.conversations[KEY].home == "a"


def test_without_the_store_known_homes_lead_and_unknown_keys_are_hashed_alike() -> None:
    pool, other = Pool(), Pool()
    other.replicas = dict(reversed([(uid, replace(replica)) for uid, replica in pool.replicas.items()]))
    other.rng = random.Random(99)
    pool.settle("a")
    pool.state.store_available = other.state.store_available = False
    pool.replicas["a"].others_in_flight = 30
    assert pool.pick().rule is Rule.STAY
    assert pool.pick(LONG // 3).rule is Rule.STAY
    keys = [ConversationKey(f"s{n}", "") for n in range(50)]
    ours, theirs = [pool.pick(key=key).home for key in keys], [other.pick(key=key).home for key in keys]
    assert ours == theirs
    assert len(set(ours)) == 3
    assert set(pool.state.conversations) == {KEY}
    assert not other.state.conversations


def test_without_the_store_a_lost_home_is_replaced_for_the_request_only() -> None:
    pool = Pool()
    pool.settle("a")
    pool.state.store_available = False
    pool.replicas["a"].healthy = False
    first, second = pool.turn(), pool.turn()
    assert first.rule is second.rule is Rule.RENDEZVOUS
    assert first.home == second.home
    pool.replicas["a"].healthy = True
    assert pool.turn().home == "a"


def test_rendezvous_moves_only_the_keys_of_the_replica_that_went() -> None:
    pool = Pool(*"abcde")
    pool.state.store_available = False
    keys = [ConversationKey(f"s{n}", "") for n in range(200)]
    before = {key: pool.turn(key=key).home for key in keys}
    del pool.replicas["c"]
    after = {key: pool.turn(key=key).home for key in keys}
    assert {key for key in keys if before[key] != after[key]} == {key for key in keys if before[key] == "c"}
