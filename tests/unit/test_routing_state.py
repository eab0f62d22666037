"""Load, estimates and memory of the router, below the rules."""

import json
import random

import pytest

from sglpool.routing.estimate import prefill_s, prompt_tokens
from sglpool.routing.load import POLL_STALE_S, load, weight
from sglpool.routing.policy import pick, release
from sglpool.routing.records import RecordError
from sglpool.routing.state import Conversation, Holder, RoutingState
from sglpool.routing.types import ConversationKey, Outcome, PickRequest, PolicyConfig, Replica

KEY = ConversationKey("s", "c")


def replica(**fields: object) -> Replica:
    return Replica(uid="r", address="10.0.0.1:30000", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 0),
        ({"own_in_flight": 2, "others_in_flight": 3}, 5),
        # The poll sees what no heartbeat told, the counts see what the poll is too old for.
        ({"own_in_flight": 1, "polled_in_flight": 4, "polled_at_s": 99.0}, 4),
        ({"polled_in_flight": 4, "polled_at_s": 99.0, "own_picks_since_poll": 3, "own_releases_since_poll": 1}, 6),
        ({"own_in_flight": 6, "polled_in_flight": 4, "polled_at_s": 99.0}, 6),
        # A chunked prefill is in neither count of the engine.
        ({"polled_in_flight": 0, "polled_at_s": 99.0, "prefilling": True}, 1),
        ({"own_in_flight": 2, "polled_in_flight": 0, "polled_at_s": 99.0, "prefilling": True}, 2),
        # Releases that the poll had counted already cannot make it negative.
        ({"polled_in_flight": 0, "polled_at_s": 99.0, "own_releases_since_poll": 5}, 0),
        ({"polled_in_flight": 9, "polled_at_s": 100.0 - POLL_STALE_S - 1}, 0),
    ],
)
def test_load_is_the_larger_of_counts_and_corrected_poll(fields: dict[str, object], expected: int) -> None:
    assert load(replica(**fields), 100.0) == expected


def test_weight_ramps_and_then_stays() -> None:
    config = PolicyConfig()
    fresh = replica(weight=2.0, ready_since_s=100.0)
    assert weight(fresh, 100.0, config) == pytest.approx(0.1)
    assert weight(fresh, 130.0, config) == pytest.approx(1.0)
    assert weight(fresh, 160.0, config) == weight(fresh, 1e6, config) == 2.0


def test_tokens_per_byte_come_from_the_conversation_then_from_the_pool() -> None:
    state = RoutingState()
    replicas = {"r": replica()}
    for n in range(300):
        key = ConversationKey(f"s{n}", "")
        pick(state, PickRequest(key, 1000, ""), replicas, float(n), random.Random(n))
        outcome = Outcome(key=key, replica_uid="r", body_bytes=1000, prompt_tokens=500, finish="stop")
        release(state, replicas, outcome, float(n))
    assert prompt_tokens(state, None, 1000) == pytest.approx(500, rel=0.02)
    own = Conversation(KEY, 0.0)
    own.tokens_per_byte = 0.1
    assert prompt_tokens(state, own, 1000) == pytest.approx(100)


def test_a_rate_measured_on_ends_of_prompts_is_corrected_for_whole_ones() -> None:
    # What a replica of Kimi K2 takes: 25 us for a first token, four times as much at 100k.
    state = RoutingState()
    measured, silent = replica(prefill_tokens_per_s=10_000.0), replica()
    for each in (measured, silent):
        assert prefill_s(state, each, 100_000, 0) == pytest.approx(6.25, rel=0.03)
        assert prefill_s(state, each, 20_000, 0) == pytest.approx(0.65, rel=0.03)
        assert prefill_s(state, each, 100_000, 90_000) == pytest.approx(0.96, rel=0.03)
        assert prefill_s(state, each, 100_000, 120_000) == 0.0


def test_usage_of_unknown_conversations_teaches_the_pool_too() -> None:
    state = RoutingState()
    before = state.tokens_per_byte
    release(state, {}, Outcome(key=None, replica_uid="gone", body_bytes=1000, prompt_tokens=500), 0.0)
    assert state.tokens_per_byte > before


def test_holders_are_few_recent_first_and_never_twice() -> None:
    conversation = Conversation(KEY, 0.0)
    for n, uid in enumerate("abcdba"):
        conversation.add_holder(Holder(uid, 100 + n, float(n)), 3)
    assert [holder.uid for holder in conversation.holders] == ["a", "b", "d"]
    assert conversation.holders[0].tokens == 105
    conversation.add_holder(Holder("empty", 0, 9.0), 3)
    assert "empty" not in [holder.uid for holder in conversation.holders]


def seen(state: RoutingState, key: ConversationKey, now_s: float) -> None:
    pick(state, PickRequest(key, 1000, ""), {"r": replica()}, now_s, random.Random(0), state.config)


def test_the_conversation_unseen_longest_goes_first() -> None:
    state = RoutingState(PolicyConfig(max_conversations=2))
    one, two, three = (ConversationKey(each, "") for each in ("one", "two", "three"))
    seen(state, one, 1.0)
    seen(state, two, 2.0)
    seen(state, one, 3.0)
    seen(state, three, 4.0)
    assert set(state.conversations) == {one, three}
    assert state.homed("r") == 2


def test_conversations_end_with_their_ttl() -> None:
    state = RoutingState()
    seen(state, KEY, 0.0)
    state.expire(state.config.ttl_s - 1)
    assert KEY in state.conversations
    state.expire(state.config.ttl_s)
    assert not state.conversations
    assert state.tallies == {}


def test_homes_seen_lately_are_not_idle() -> None:
    state = RoutingState()
    seen(state, KEY, 100.0)
    assert state.homes_seen_since(40.0) == {"r"}
    assert state.homes_seen_since(101.0) == set()


def snapshot_of_two() -> dict[str, object]:
    state = RoutingState()
    replicas = {"r": replica()}
    for n in range(2):
        key = ConversationKey(f"s{n}", "c")
        pick(state, PickRequest(key, 4000, ""), replicas, 100.0 + n, random.Random(0))
        outcome = Outcome(key=key, replica_uid="r", body_bytes=4000, prompt_tokens=900, finish="tool_calls")
        release(state, replicas, outcome, 200.0 + n)
    state.residency_s["r"] = 900.0
    return json.loads(json.dumps(state.export()))  # type: ignore[no-any-return]


def test_a_restarted_router_knows_homes_and_who_is_about_to_come_back() -> None:
    fresh = RoutingState()
    assert fresh.load(snapshot_of_two(), 210.0) == 2
    assert fresh.homed("r") == fresh.pending_on("r") == 2
    assert fresh.residency_s == {"r": 900.0}
    conversation = fresh.get(ConversationKey("s0", "c"))
    assert conversation is not None
    assert (conversation.home, conversation.ctx_tokens, conversation.in_flight) == ("r", 900, 0)
    fresh.expire(265.0)
    assert fresh.pending_on("r") == 0


def test_what_a_router_knows_better_survives_a_snapshot() -> None:
    state = RoutingState()
    key = ConversationKey("s0", "c")
    pick(state, PickRequest(key, 9, ""), {"other": Replica(uid="other", address="")}, 500.0, random.Random(0))
    assert state.load(snapshot_of_two(), 500.0) == 1
    assert state.conversations[key].home == "other"
    assert list(state.conversations) == [ConversationKey("s1", "c"), key]


def test_conversations_beyond_their_ttl_stay_in_the_snapshot() -> None:
    fresh = RoutingState()
    assert fresh.load(snapshot_of_two(), 200.5 + fresh.config.ttl_s) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 7}, "version is 7"),
        ({"conversations": {}}, "conversations is dict"),
        ({"residency_s": {"r": "long"}}, "residency_s.r is 'long'"),
        ({"tokens_per_byte": float("nan")}, "tokens_per_byte is nan"),
        ({"conversations": [{"session": "s"}]}, r"conversations\[0\]"),
        ({"conversations": [None]}, r"conversations\[0\]: NoneType"),
    ],
)
def test_a_snapshot_that_is_wrong_is_refused_whole(change: dict[str, object], words: str) -> None:
    fresh = RoutingState()
    with pytest.raises(RecordError, match=words):
        fresh.load(snapshot_of_two() | change, 210.0)
    assert not fresh.conversations


def test_a_record_from_another_router_replaces_older_knowledge_only() -> None:
    ours, theirs = RoutingState(), RoutingState()
    assert ours.record(KEY) is None
    pick(theirs, PickRequest(KEY, 9, ""), {"x": Replica(uid="x", address="")}, 10.0, random.Random(0))
    record = theirs.record(KEY)
    assert ours.absorb(record, 11.0)
    assert ours.homed("x") == 1
    assert not ours.absorb(record, 12.0)
    with pytest.raises(RecordError, match="NoneType instead of an object"):
        ours.absorb(None, 12.0)


@pytest.mark.parametrize(
    ("field", "value"), [("spill_budget", 1.5), ("ramp_floor", 0.0), ("ttl_s", -1.0), ("kv_weight", float("nan"))]
)
def test_constants_that_make_no_sense_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        PolicyConfig(**{field: value})  # type: ignore[arg-type]
