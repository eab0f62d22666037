"""What holds for every history of picks, releases and lapses, whatever the replicas do meanwhile."""

import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglpool.routing.baselines import POLICIES
from sglpool.routing.choice import Situation, candidate
from sglpool.routing.load import load
from sglpool.routing.policy import lapse, pick, release
from sglpool.routing.state import RoutingState
from sglpool.routing.types import ConversationKey, Decision, Outcome, PickRequest, PolicyConfig, Replica, Rule

STAYING = {Rule.STAY, Rule.DRAIN_STAY}
KEEPING = STAYING | {Rule.THICK, Rule.FULL_HOME, Rule.REFUSED_HOME, Rule.REFUSE}
MOVING = {Rule.NEW, Rule.FAILOVER, Rule.FREE_MOVE, Rule.SPILL, Rule.DRAIN_MOVE}

EVENTS = st.sampled_from(
    ["pick"] * 8 + ["release"] * 5 + ["lapse", "refused", "flap", "drain", "undrain", "deadline", "poll", "replace"]
)


@dataclass
class World:
    """A pool with a router, and a history made by a seed."""

    seed: int
    count: int
    config: PolicyConfig = field(default_factory=PolicyConfig)
    policy: object = pick
    now_s: float = 1000.0
    picks: int = 0
    spills: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.ties = random.Random(self.seed + 1)
        self.state = RoutingState(self.config)
        self.replicas = {f"r{i}": self.replica(f"r{i}") for i in range(self.count)}
        self.open: list[tuple[PickRequest, str]] = []
        self.decisions: list[Decision] = []

    def replica(self, uid: str) -> Replica:
        return Replica(
            uid=uid,
            address=f"10.0.0.1:{uid}",
            weight=self.rng.choice([1.0, 1.0, 1.5]),
            ready_since_s=self.now_s - self.rng.choice([0.0, 30.0, 600.0]),
            max_concurrent=self.rng.randrange(1, 7),
            kv_used_tokens=self.rng.randrange(100),
            kv_total_tokens=100,
            proven=self.rng.random() > 0.1,
        )

    def request(self) -> PickRequest:
        key = ConversationKey(f"s{self.rng.randrange(4)}", f"c{self.rng.randrange(3)}")
        body_bytes = self.rng.choice([0, 900, 40_000, 100_000, 400_000, 420_000])
        return PickRequest(None if self.rng.random() < 0.1 else key, body_bytes, f"{key}")

    def step(self, event: str) -> None:
        self.now_s += self.rng.choice([0.0, 0.1, 2.0, 70.0])
        getattr(self, f"do_{event}")()

    def do_pick(self) -> None:
        request = self.request()
        before = {uid: replace(replica) for uid, replica in self.replicas.items()}
        conversation = self.state.get(request.key) if request.key else None
        home = conversation.home if conversation else None
        decision = self.policy(self.state, request, self.replicas, self.now_s, self.ties, self.config)  # type: ignore[operator]
        self.picks += 1
        self.spills += decision.rule is Rule.SPILL
        self.decisions.append(decision)
        self.check_choice(decision, before, home)
        if decision.home is not None:
            self.open.append((request, decision.home))
            if self.policy is pick and request.key is not None and self.state.store_available:
                after = self.state.get(request.key)
                assert after is not None
                assert after.home == (decision.home if decision.rule in MOVING else home)

    def check_choice(self, decision: Decision, before: dict[str, Replica], home: str | None) -> None:
        if decision.home is None:
            assert decision.rule is Rule.REFUSE
            assert decision.second is None
            return
        chosen = before[decision.home]
        assert chosen.healthy
        assert chosen.proven
        assert not chosen.refused
        assert load(chosen, self.now_s) < chosen.max_concurrent
        assert decision.second != decision.home
        if decision.second is not None:
            second = before[decision.second]
            assert second.healthy
            assert second.proven
            assert not second.refused
            assert not second.draining
        if chosen.draining:
            assert decision.home == home
            assert decision.rule is Rule.DRAIN_STAY
        if decision.rule in STAYING:
            assert decision.home == home
        if decision.rule in {Rule.FREE_MOVE, Rule.SPILL, Rule.DRAIN_MOVE, Rule.FAILOVER}:
            assert decision.moved
            assert decision.home != home
        if decision.rule in KEEPING:
            assert not decision.moved

    def _close(self) -> tuple[PickRequest, str] | None:
        return self.open.pop(self.rng.randrange(len(self.open))) if self.open else None

    def do_release(self, *, refused: bool = False) -> None:
        ended = self._close()
        if ended is None:
            return
        request, uid = ended
        prompt = self.rng.choice([None, request.body_bytes // 4])
        outcome = Outcome(
            key=request.key,
            replica_uid=uid,
            body_bytes=request.body_bytes,
            prompt_tokens=prompt,
            cached_tokens=None if prompt is None else self.rng.choice([0, prompt]),
            completion_tokens=self.rng.choice([None, 300]),
            finish=self.rng.choice(["tool_calls", "stop", "length", "abort", "unknown"]),
            refused=refused,
            served_uid=self.rng.choice([None, None, *self.replicas]),
        )
        release(self.state, self.replicas, outcome, self.now_s, self.config)

    def do_refused(self) -> None:
        self.do_release(refused=True)

    def do_lapse(self) -> None:
        ended = self._close()
        if ended is not None:
            lapse(self.state, self.replicas, ended[0].key, ended[1], self.now_s)

    def _any(self) -> Replica:
        return self.replicas[self.rng.choice(sorted(self.replicas))]

    def do_flap(self) -> None:
        replica = self._any()
        replica.healthy = not replica.healthy

    def do_drain(self) -> None:
        replica = self._any()
        replica.draining, replica.drain_deadline_s = True, self.rng.choice([None, self.now_s + 100.0])

    def do_undrain(self) -> None:
        replica = self._any()
        replica.draining, replica.drain_deadline_s = False, None

    def do_deadline(self) -> None:
        self.now_s += 100.0

    def do_poll(self) -> None:
        replica = self._any()
        replica.polled_in_flight, replica.polled_at_s = replica.own_in_flight + self.rng.randrange(3), self.now_s
        replica.own_picks_since_poll = replica.own_releases_since_poll = 0
        replica.prefilling = self.rng.random() < 0.1
        replica.refused = False

    def do_replace(self) -> None:
        gone = self._any().uid
        del self.replicas[gone]
        fresh = f"r{len(self.decisions)}-{gone}"[:40]
        self.replicas[fresh] = self.replica(fresh)
        self.state.forget_replicas(set(self.replicas))

    def check_counts(self) -> None:
        on: dict[str, int] = {}
        for _, uid in self.open:
            on[uid] = on.get(uid, 0) + 1
        for uid, replica in self.replicas.items():
            assert replica.own_in_flight == on.get(uid, 0)
            assert replica.own_in_flight <= replica.max_concurrent
        keyed = [request.key for request, _ in self.open if request.key is not None]
        assert sum(sum(each.values()) for each in self.state.sessions.values()) == len(keyed)
        homes: dict[str, int] = {}
        for conversation in self.state.conversations.values():
            assert conversation.in_flight >= 0
            assert len(conversation.holders) <= self.config.max_holders
            assert conversation.home not in [holder.uid for holder in conversation.holders]
            if conversation.home is not None:
                homes[conversation.home] = homes.get(conversation.home, 0) + 1
        assert {uid: tally.homed for uid, tally in self.state.tallies.items()} == homes
        assert sum(tally.pending for tally in self.state.tallies.values()) == len(self.state.pending)
        assert all(tally.pending >= 0 for tally in self.state.tallies.values())


def worlds() -> st.SearchStrategy[World]:
    return st.builds(World, seed=st.integers(0, 2**32), count=st.integers(1, 6))


@settings(max_examples=150, deadline=None)
@given(world=worlds(), events=st.lists(EVENTS, min_size=1, max_size=80))
def test_every_choice_is_allowed_and_every_count_is_right(world: World, events: list[str]) -> None:
    for event in events:
        world.step(event)
        world.check_counts()


@settings(max_examples=60, deadline=None)
@given(world=worlds(), events=st.lists(EVENTS, min_size=1, max_size=60))
def test_counts_return_to_zero_when_everything_has_ended(world: World, events: list[str]) -> None:
    for event in events:
        world.step(event)
    while world.open:
        world.step(world.rng.choice(["release", "lapse", "refused"]))
    assert world.state.sessions == {}
    assert all(replica.own_in_flight == 0 for replica in world.replicas.values())
    assert all(conversation.running is None for conversation in world.state.conversations.values())


@settings(max_examples=60, deadline=None)
@given(world=worlds(), events=st.lists(EVENTS, min_size=1, max_size=60))
def test_without_a_store_nobody_moves_and_nothing_new_is_remembered(world: World, events: list[str]) -> None:
    for event in ["pick", "release"] * 10:
        world.step(event)
    homes = {key: conversation.home for key, conversation in world.state.conversations.items()}
    world.state.store_available = False
    for event in events:
        world.step(event)
        world.check_counts()
    later = {key: conversation.home for key, conversation in world.state.conversations.items()}
    assert later.items() <= homes.items()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(2, 6),
    events=st.lists(st.sampled_from(["pick", "pick", "release", "poll"]), min_size=1, max_size=200),
)
def test_spills_keep_to_their_budget(seed: int, count: int, events: list[str]) -> None:
    config = PolicyConfig(spill_burst=2.0, spill_min_load=0.0, spill_min_difference=0.5, spill_per_migration_s=0.0)
    world = World(seed, count, config)
    for event in events:
        world.step(event)
    assert world.spills <= config.spill_burst + config.spill_budget * world.picks


def test_the_budget_is_what_holds_spills_back() -> None:
    # Each pick finds a home far busier than the empty neighbour; without a budget every one would move.
    config = PolicyConfig(spill_burst=3.0, spill_per_migration_s=0.0)
    state, rng = RoutingState(config), random.Random(0)
    replicas = {uid: Replica(uid=uid, address=uid) for uid in "ab"}
    rules = []
    for n in range(200):
        key = ConversationKey(f"s{n}", "")
        first = pick(state, PickRequest(key, 400, str(n)), replicas, n, rng, config)
        assert first.home is not None
        release(
            state,
            replicas,
            Outcome(key=key, replica_uid=first.home, body_bytes=400, prompt_tokens=100, finish="stop"),
            n,
            config,
        )
        replicas[first.home].others_in_flight = 20
        again = pick(state, PickRequest(key, 420, str(n)), replicas, n, rng, config)
        assert again.home is not None
        lapse(state, replicas, key, again.home, n)
        replicas[first.home].others_in_flight = 0
        rules.append(again.rule)
    assert set(rules) == {Rule.SPILL, Rule.STAY}
    assert 3 <= rules.count(Rule.SPILL) <= 3 + 0.02 * 400


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 6), events=st.lists(EVENTS, min_size=1, max_size=60))
def test_the_same_history_and_seed_give_the_same_decisions(seed: int, count: int, events: list[str]) -> None:
    one, other = World(seed, count), World(seed, count)
    for event in events:
        one.step(event)
        other.step(event)
    assert one.decisions == other.decisions
    assert one.state.export() == other.state.export()


@settings(max_examples=40, deadline=None)
@given(world=worlds(), limit=st.integers(1, 5), events=st.lists(EVENTS, min_size=20, max_size=80))
def test_no_more_conversations_are_remembered_than_allowed(world: World, limit: int, events: list[str]) -> None:
    world.config = replace(world.config, max_conversations=limit)
    world.state = RoutingState(world.config)
    for event in events:
        world.step(event)
        world.check_counts()
        assert len(world.state.conversations) <= limit
        assert len(world.state.pending) <= limit


@settings(max_examples=100, deadline=None)
@given(world=worlds(), events=st.lists(EVENTS, max_size=40), more=st.integers(1, 20))
def test_more_load_never_makes_a_replica_more_attractive(world: World, events: list[str], more: int) -> None:
    for event in events:
        world.step(event)
    fresh = ConversationKey("nobody", "yet")
    request = PickRequest(fresh, 1000, "f")
    for uid, replica in world.replicas.items():
        s = Situation(world.state, request, world.replicas, world.now_s, world.ties, world.config)
        before = candidate(s, replica)
        busier = dict(world.replicas)
        busier[uid] = replace(replica, others_in_flight=replica.others_in_flight + more)
        after = candidate(Situation(world.state, request, busier, world.now_s, world.ties, world.config), busier[uid])
        assert after.score >= before.score
        assert after.pressure >= before.pressure


@settings(max_examples=60, deadline=None)
@given(world=worlds(), events=st.lists(EVENTS, max_size=30), more=st.integers(1, 20))
def test_a_new_conversation_never_follows_load(world: World, events: list[str], more: int) -> None:
    """A replica that lost a new conversation to another one does not win it by becoming busier."""
    for event in events:
        world.step(event)
    request = PickRequest(ConversationKey("nobody", "yet"), 1000, "f")

    def chosen(replicas: dict[str, Replica]) -> str | None:
        # A fresh memory with the same seed: the only difference is the load.
        copies = {uid: replace(replica) for uid, replica in replicas.items()}
        return pick(RoutingState(), request, copies, world.now_s, random.Random(7)).home

    winner = chosen(world.replicas)
    for uid, replica in world.replicas.items():
        if uid != winner:
            busier = world.replicas | {uid: replace(replica, others_in_flight=replica.others_in_flight + more)}
            assert chosen(busier) != uid


@settings(max_examples=40, deadline=None)
@given(world=worlds(), events=st.lists(EVENTS, max_size=60))
def test_a_snapshot_brings_back_what_was_known(world: World, events: list[str]) -> None:
    for event in events:
        world.step(event)
    snapshot = world.state.export()
    fresh = RoutingState(world.config)
    fresh.load(snapshot, world.now_s)
    assert fresh.export() == snapshot
    assert fresh.load(snapshot, world.now_s) == 0


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 6), events=st.lists(EVENTS, min_size=1, max_size=60))
def test_baselines_keep_the_same_counts_and_limits(name: str, seed: int, count: int, events: list[str]) -> None:
    world = World(seed, count, policy=POLICIES[name])
    for event in events:
        if event not in ("drain", "deadline"):
            world.step(event)
            world.check_counts()
