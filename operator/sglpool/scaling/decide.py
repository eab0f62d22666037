"""The decision of one tick: hold, grow, shrink, or stay.

    need = max(mean requests in flight and refused / 0.9, ready capacity * KV utilisation / its target)
    grow     when need > 1.05 of what the replicas that serve or start can carry, at once, until they carry it
    shrink   when need < 0.85 of it for a whole window, nothing starts and all is read: 10% in two minutes
    hold     when the load cannot be read

The mean is one of 60 s, of 10 s while requests wait, of two readings when the load has jumped.

Decided from what is: the same signals and memory give the same answer. Not here: reading anything, and carrying it out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sglpool.scaling import demand, moves, text
from sglpool.scaling.capacity import Group, capacity, groups, slowest_start_s
from sglpool.scaling.check import problem
from sglpool.scaling.demand import Need, Reading
from sglpool.scaling.moves import Move
from sglpool.scaling.starts import forget_times, remember_podless, remember_starts
from sglpool.scaling.types import Decision, Memory, Policy, Reason, Signals

GROW_ABOVE, SHRINK_BELOW = 1.05, 0.85
SHRINK_EVERY_S = 120.0
_UNREADABLE = Reading(problem=Reason.CLOCK_JUMPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Situation:
    """What the rules look at."""

    policy: Policy
    found: tuple[Group, ...]
    reading: Reading
    asked: Need
    memory: Memory
    now_s: float

    @property
    def capacity(self) -> float:
        return capacity(self.found)

    @property
    def window_s(self) -> float:
        return demand.window_s(slowest_start_s(self.found))

    @property
    def low(self) -> bool:
        """Whether the load has been low for all of the window that there is."""
        return demand.peak(self.memory) < SHRINK_BELOW * self.capacity


def decide(policy: Policy, signals: Signals, memory: Memory, now_s: float) -> tuple[Decision, Memory]:
    """Decide how many replicas of each GPU type a pool should have.

    Args:
        policy: what the user wants.
        signals: load and replicas as they are.
        memory: what the last decision left; `Memory()` at first, and after a restart.
        now_s: Unix time.

    Returns:
        The decision, and the memory for the next one.
    """
    wrong = problem(policy)
    if wrong is not None:
        return _keep(policy, signals, memory, wrong, now_s)
    jumped = memory.last_s is not None and not 0 <= now_s - memory.last_s <= policy.max_gap_s
    memory = forget_times(signals, memory) if jumped else remember_starts(policy, signals, memory, now_s)
    memory = remember_podless(signals, memory, now_s)
    before = groups(policy, {state.type: state for state in signals.types}, memory, now_s)
    found = moves.bounded(policy, before)
    reading = _UNREADABLE if jumped else demand.read(policy, signals, found)
    if reading.problem is not None:
        return _hold(found, reading, memory, now_s)
    memory = demand.remember_demand(memory, reading, now_s)
    asked = demand.need(policy, signals, reading, memory, found, now_s)
    window_s = demand.window_s(slowest_start_s(found))
    memory = demand.remember_need(memory, asked.careful, window_s, now_s, policy.max_gap_s)
    situation = _Situation(policy=policy, found=found, reading=reading, asked=asked, memory=memory, now_s=now_s)
    reason, move, memory = _act(situation)
    if not move.changed and before != found:
        reason = Reason.BOUNDS
    return _answer(situation, reason, move, memory)


def _act(now: _Situation) -> tuple[Reason, Move, Memory]:
    if now.asked.requests > GROW_ABOVE * now.capacity or moves.short_of(now.policy, now.found):
        return _grow(now)
    waits = _why_not_shrink(now)
    helpers = sum(now.memory.spilled.values())
    stay = Move(wanted=moves.standing(now.found))
    if waits is None and (now.low or helpers):
        reason, move, memory = _shrink(now)
        if move.changed or now.low:
            return reason, move, memory
    if waits is None and not now.low:
        return _come_back(now)
    return (waits if waits is not None and now.low else Reason.WITHIN_TARGET), stay, now.memory


def _grow(now: _Situation) -> tuple[Reason, Move, Memory]:
    budget, growth = _budget(now)
    move = moves.grow(now.policy, now.found, now.asked.requests, budget)
    if not move.changed:
        # What is needed beyond the capacity comes back with every tick, but nothing was used of the budget.
        return move.limit or Reason.WITHIN_TARGET, move, now.memory
    idle = sum(group.failed + group.homeless for group in now.found)
    stand_ins = _stand_ins(now.memory.spilled, move.passed_by, idle - sum(now.memory.spilled.values()))
    return _why_grow(now, move), move, _grown(now.memory, growth, move.changed, stand_ins)


def _stand_ins(spilled: Mapping[str, int], more: Mapping[str, int], limit: int) -> dict[str, int]:
    """Stand-ins with some more, but never for pods that there are not: what came for more load stays when they come."""
    found = dict(spilled)
    for name, count in more.items():
        new = max(0, min(count, limit))
        found[name] = found.get(name, 0) + new
        limit -= new
    return found


def _budget(now: _Situation) -> tuple[int, tuple[float, int, int]]:
    period_s = slowest_start_s(now.found) / 2
    return moves.growth_budget(now.memory.growth, moves.total(now.found), period_s, now.now_s)


def _grown(memory: Memory, growth: tuple[float, int, int], added: int, spilled: Mapping[str, int]) -> Memory:
    begin_s, then, before = growth
    return replace(memory, growth=(begin_s, then, before + added), spilled=spilled)


def _why_grow(now: _Situation, move: Move) -> Reason:
    if move.passed_by:
        return Reason.SPILLED
    if now.asked.requests <= GROW_ABOVE * now.capacity:
        return Reason.BOUNDS
    if now.asked.by_kv > now.asked.by_requests:
        return Reason.KV_ABOVE_TARGET
    return Reason.REQUESTS_WAITING if now.asked.urgent else Reason.LOAD_ABOVE_TARGET


def _suspects(now: _Situation) -> bool:
    """Whether the last reading alone, if it is no chance, asks for more than there is."""
    beyond = now.reading.demand / demand.HEAD_ROOM > GROW_ABOVE * now.capacity
    return beyond and demand.may_have_jumped(now.memory)


def _why_not_shrink(now: _Situation) -> Reason | None:
    """What forbids any step down now, whatever the load."""
    if any(group.coming for group in now.found):
        return Reason.REPLICAS_STARTING
    if not demand.covered(now.memory, now.window_s, now.now_s):
        return Reason.WINDOW_OPEN
    last_s = now.memory.last_shrink_s
    return Reason.WINDOW_OPEN if last_s is not None and now.now_s - last_s < SHRINK_EVERY_S else None


def _shrink(now: _Situation) -> tuple[Reason, Move, Memory]:
    budget = moves.shrink_step(moves.total(now.found))
    spilled = now.memory.spilled
    rest = moves.Rest(peak=demand.peak(now.memory), now=now.asked.careful, spilled=spilled, low=now.low)
    move = moves.shrink(now.policy, now.found, rest, budget)
    if not move.changed:
        return move.limit or Reason.WITHIN_TARGET, move, now.memory
    gone = {group.type: group.now - move.wanted[group.type] for group in now.found}
    left = {name: count - gone.get(name, 0) for name, count in spilled.items()}
    memory = replace(
        now.memory,
        last_shrink_s=now.now_s,
        spilled={name: count for name, count in left.items() if count > 0},
    )
    stuck = any(group.stuck for group in now.found)
    returning = not stuck and all(count <= spilled.get(name, 0) for name, count in gone.items())
    return Reason.RETURNING if returning else Reason.LOAD_BELOW_TARGET, move, memory


def _come_back(now: _Situation) -> tuple[Reason, Move, Memory]:
    stay = Move(wanted=moves.standing(now.found))
    last_s = now.memory.last_return_s
    if last_s is not None and now.now_s - last_s < now.window_s:
        return Reason.WITHIN_TARGET, stay, now.memory
    budget, growth = _budget(now)
    move = moves.come_back(now.policy, now.found) if budget else None
    if move is None:
        return Reason.WITHIN_TARGET, stay, now.memory
    memory = _grown(now.memory, growth, move.changed, _stand_ins(now.memory.spilled, move.passed_by, move.changed))
    return Reason.RETURNING, move, replace(memory, last_return_s=now.now_s)


def _keep(policy: Policy, signals: Signals, memory: Memory, wrong: str, now_s: float) -> tuple[Decision, Memory]:
    """Hold a pool whose policy makes no sense, its bounds included."""
    replicas = {state.type: state.replicas for state in signals.types}
    names = [one.type for one in policy.types]
    wanted = {name: memory.wanted.get(name, replicas.get(name, 0)) for name in names}
    decision = Decision(
        wanted=wanted, reason=Reason.INVALID_POLICY, message=text.invalid(wrong), inputs={}, valid=False
    )
    return decision, replace(memory, last_s=now_s)


def _hold(found: tuple[Group, ...], reading: Reading, memory: Memory, now_s: float) -> tuple[Decision, Memory]:
    wanted = moves.standing(found)
    reason = reading.problem or Reason.CLOCK_JUMPED
    decision = Decision(
        wanted=wanted,
        reason=reason,
        message=text.held(reading, moves.total(found)),
        inputs=text.figures(found, reading, None, memory),
        valid=False,
    )
    return decision, replace(memory, wanted=wanted, last_s=now_s)


def _answer(now: _Situation, reason: Reason, move: Move, memory: Memory) -> tuple[Decision, Memory]:
    decision = Decision(
        wanted=move.wanted,
        reason=reason,
        message=text.decided(reason, now.found, now.asked, demand.peak(now.memory), move.wanted),
        inputs=text.figures(now.found, now.reading, now.asked, now.memory),
        valid=True,
        look_again=_suspects(now),
    )
    # Helpers are counted up to what there is: the bounds and the user may have taken them.
    spilled = {name: min(count, move.wanted[name]) for name, count in memory.spilled.items() if move.wanted.get(name)}
    return decision, replace(memory, wanted=move.wanted, spilled=spilled, last_s=now.now_s)
