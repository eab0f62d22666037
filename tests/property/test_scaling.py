"""What holds for every history of loads, readings, starts and clocks, whatever the policy."""

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from sglpool.scaling import Decision, Memory, Policy, Reason, Signals, TypePolicy, decide
from sglpool.scaling.capacity import Group, groups
from support.scaling import TICK_S, Pool, policy

WINDOW_S = 900.0
LOADS = st.one_of(st.none(), st.floats(0, 400), st.floats(0, 40))


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """A legal policy of one to three GPU types."""
    types = []
    for name in ("B200", "B300", "H200")[: draw(st.integers(1, 3))]:
        least = draw(st.integers(0, 2))
        types.append(
            TypePolicy(
                type=name,
                target_running_requests=draw(st.integers(1, 20)),
                min_replicas=least,
                max_replicas=draw(st.one_of(st.none(), st.integers(max(1, least), 20))),
                usable=draw(st.integers(0, 9)) > 0,
            )
        )
    floors = sum(one.min_replicas for one in types)
    ceilings = sum(40 if one.max_replicas is None else one.max_replicas for one in types)
    least = draw(st.integers(0, min(6, ceilings)))
    most = draw(st.integers(max(1, least, floors), 40))
    return policy(*types, least=least, most=most)


@dataclass
class Step:
    """A stretch of time with everything as it is drawn."""

    load: float | None
    ticks: int
    kv_share: float
    queued: int
    unread: int
    room: dict[str, int]
    broken: set[str]
    jump_s: float = 0.0
    stale: bool = False


STEPS = st.builds(
    Step,
    load=LOADS,
    ticks=st.sampled_from([1, 1, 2, 5, 20, 64]),
    kv_share=st.sampled_from([0.0, 0.1, 0.5, 0.8, 0.99]),
    queued=st.sampled_from([0, 0, 0, 3]),
    unread=st.sampled_from([0, 0, 0, 1, 4]),
    room=st.dictionaries(st.sampled_from(["B200", "B300"]), st.integers(0, 8), max_size=2),
    broken=st.sets(st.sampled_from(["B200", "B300"]), max_size=1),
    jump_s=st.sampled_from([0.0] * 6 + [-3600.0, -20.0, 130.0, 1e6]),
    stale=st.sampled_from([False] * 5 + [True]),
)
HISTORIES = st.lists(STEPS, min_size=1, max_size=8)


@dataclass
class Watched(Pool):
    """A pool that checks every decision."""

    stale: bool = False
    read_since_s: float | None = None
    last_tick_s: float | None = None
    read_s: float = -1e18
    shrunk_s: float = -1e18
    moments: list[tuple[Signals, Memory, float]] = field(default_factory=list)

    def signals(self) -> Signals:
        """The pool as it is, or as it was a while ago."""
        return replace(super().signals(), age_s=300.0 if self.stale else 1.0)

    def live(self, step: Step) -> None:
        """Live through a step."""
        self.load, self.kv_share, self.queued, self.unread = step.load, step.kv_share, step.queued, step.unread
        self.room, self.broken, self.stale = step.room, step.broken, step.stale
        self.now_s += step.jump_s
        for _ in range(step.ticks):
            self.watched_tick()

    def watched_tick(self) -> None:
        """One tick, checked."""
        signals, memory, now_s = self.signals(), self.memory, self.now_s
        self.moments.append((signals, memory, now_s))
        before = counted(self.policy, signals, memory, now_s)
        decision = self.tick()
        self.check_bounds(decision)
        self.check_evidence(decision, before, now_s)
        check_bounded(self.memory)
        self.last_tick_s = now_s

    def check_bounds(self, decision: Decision) -> None:
        assert decision.total <= self.policy.max_replicas
        usable = [one for one in self.policy.types if one.usable]
        for one in self.policy.types:
            assert decision.wanted[one.type] >= (one.min_replicas if one.usable else 0)
            assert one.max_replicas is None or decision.wanted[one.type] <= one.max_replicas
        reachable = sum(40 if one.max_replicas is None else one.max_replicas for one in usable)
        assert decision.total >= min(self.policy.min_replicas, reachable)

    def check_evidence(self, decision: Decision, before: tuple[Group, ...], now_s: float) -> None:
        """Nothing shrinks without a whole window of readings, twice within two minutes, or by more than a tenth."""
        jumped = self.last_tick_s is not None and not 0 <= now_s - self.last_tick_s <= 120.0
        if jumped:
            assert not decision.valid
            self.shrunk_s = -1e18
        if jumped or not decision.valid:
            # Short gaps are allowed; all that this checks is that a long one is none.
            self.read_since_s = None if jumped or now_s - self.read_s > 120.0 else self.read_since_s
        elif self.read_since_s is None:
            self.read_since_s = now_s
        if decision.valid:
            self.read_s = now_s
        was = {group.type: group.now for group in before}
        less = sum(was.values()) - decision.total
        if less <= 0 or self.outside(was):
            return
        assert decision.valid
        assert decision.reason in {Reason.LOAD_BELOW_TARGET, Reason.RETURNING}
        assert self.read_since_s is not None
        assert now_s - self.read_since_s >= WINDOW_S
        assert now_s - self.shrunk_s >= 120.0
        assert less <= max(1, sum(was.values()) // 10)
        self.shrunk_s = now_s

    def outside(self, was: dict[str, int]) -> bool:
        """Whether the bounds alone ask for a change."""
        over = any(one.max_replicas is not None and was[one.type] > one.max_replicas for one in self.policy.types)
        return over or sum(was.values()) > self.policy.max_replicas


def counted(pool_policy: Policy, signals: Signals, memory: Memory, now_s: float) -> tuple[Group, ...]:
    """The replicas as the decision counts them."""
    return groups(pool_policy, {state.type: state for state in signals.types}, memory, now_s)


def check_bounded(memory: Memory) -> None:
    """What is kept does not grow with time."""
    assert len(memory.demand) <= 32
    assert len(memory.needs) <= 260
    assert all(len(each) <= 8 for each in memory.starts.values())
    assert len(memory.spilled) <= 3
    assert len(memory.known) + len(memory.starting) <= 80


def effective(found: tuple[Group, ...], decision: Decision) -> float:
    """Requests that what is wanted will carry, as far as it counts now."""
    places = 0.0
    for group in found:
        change = decision.wanted[group.type] - group.now
        lost = max(0, -change - group.idle_top)
        places += (group.counted + max(0, change) - min(group.counted, lost)) * group.target
    return places


def world(pool_policy: Policy, history: list[Step], initial: list[int]) -> Watched:
    """A pool after a history."""
    pool = Watched(pool_policy)
    pool.fill(**{one.type: count for one, count in zip(pool_policy.types, initial, strict=False)})
    for step in history:
        pool.live(step)
    return pool


INITIAL = st.lists(st.integers(0, 8), min_size=3, max_size=3)


@settings(max_examples=100, deadline=None)
@given(policies(), HISTORIES, INITIAL)
def test_the_rules_hold_for_every_history(pool_policy: Policy, history: list[Step], initial: list[int]) -> None:
    world(pool_policy, history, initial)


@settings(max_examples=100, deadline=None)
@given(policies(), HISTORIES, INITIAL, st.floats(0, 400), st.floats(0, 400), st.data())
def test_more_load_never_means_less_capacity(
    pool_policy: Policy, history: list[Step], initial: list[int], one: float, other: float, data: st.DataObject
) -> None:
    pool = world(pool_policy, history, initial)
    signals, memory, now_s = data.draw(st.sampled_from(pool.moments))
    found = counted(pool_policy, signals, memory, now_s)
    busier = data.draw(st.sampled_from(["load", "kv", "queued", "refused"]))
    low = replace(signals, in_flight=min(one, other))
    high = {
        "load": replace(low, in_flight=max(one, other)),
        "kv": replace(low, replicas=tuple(replace(each, kv_used_tokens=each.kv_total_tokens) for each in low.replicas)),
        "queued": replace(low, queued=low.queued + 5),
        "refused": replace(low, refused_conversations=low.refused_conversations + 5),
    }[busier]
    less, _ = decide(pool_policy, low, memory, now_s)
    more, _ = decide(pool_policy, high, memory, now_s)
    assert effective(found, less) <= effective(found, more)


@settings(max_examples=50, deadline=None)
@given(policies(), HISTORIES, INITIAL, st.data())
def test_a_decision_is_a_function_of_what_it_is_given(
    pool_policy: Policy, history: list[Step], initial: list[int], data: st.DataObject
) -> None:
    pool = world(pool_policy, history, initial)
    moment = data.draw(st.sampled_from(pool.moments))
    assert decide(pool_policy, *moment) == decide(pool_policy, *moment)


@settings(max_examples=50, deadline=None)
@given(policies(), HISTORIES, INITIAL, st.integers(1, 200))
def test_without_readings_a_pool_stays_as_it_is(
    pool_policy: Policy, history: list[Step], initial: list[int], ticks: int
) -> None:
    pool = world(pool_policy, history, initial)
    before = pool.wanted
    for missing in ({"load": None}, {"stale": True}, {"unread": 10**6}):
        pool.load, pool.stale, pool.unread = 0.0, False, 0
        for name, value in missing.items():
            setattr(pool, name, value)
        for _ in range(ticks):
            decision = pool.tick()
            if decision.inputs["readyReplicas"] or "unread" not in missing:
                assert not decision.valid
                assert dict(decision.wanted) == before


@settings(max_examples=25, deadline=None)
@given(st.floats(0, 300), st.integers(1, 12), st.floats(10, 1200), st.integers(1, 20))
def test_a_steady_load_gets_what_it_needs_once(load: float, replicas: int, cold_start_s: float, target: int) -> None:
    """No cascade: replicas that start are not asked for again, however long they take (up to twice the guess)."""
    one = TypePolicy(type="B200", target_running_requests=target)
    pool = Pool(policy(one, most=1000), load=load, cold_start_s=cold_start_s).fill(B200=replicas)
    pool.run(4 * 3600.0)
    enough = -int(-(load / 0.9 - 1e-6) // target)
    assert max(decision.total for decision in pool.decisions) <= max(replicas, enough)
    assert pool.wanted["B200"] * target * 1.05 >= load / 0.9 - 1e-6


@settings(max_examples=30, deadline=None)
@given(policies(), HISTORIES, INITIAL)
def test_losing_the_memory_shrinks_nothing_for_a_window(
    pool_policy: Policy, history: list[Step], initial: list[int]
) -> None:
    pool = world(pool_policy, history, initial)
    pool.memory, pool.load, pool.unread, pool.stale = Memory(), 0.0, 0, False
    before = pool.wanted
    for _ in range(int(WINDOW_S / TICK_S)):
        decision = pool.tick()
        assert decision.total >= sum(before.values())
