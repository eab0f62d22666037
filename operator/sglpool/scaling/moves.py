"""How many replicas of which GPU type come or go, within the bounds.

Growth fills the types in order of preference and passes by those whose pods find no node or do not start; shrinking
goes the other way round. Not here: whether the load asks for it (`decide`), and which pod goes (`plan`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sglpool.scaling.capacity import Group, capacity
from sglpool.scaling.types import Policy, Reason

STEP_MIN, STEP_SHARE = 4, 0.5
"""Most replicas that start in half a cold start: this many, or this share of the pool."""
SHRINK_SHARE = 0.1
N_MINUS_1 = 0.95
"""What is left after a step down carries at most this part of its target, by the load as it is now."""
_EPSILON = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A change of the wanted replicas.

    Attributes:
        wanted: replicas by GPU type.
        changed: how many replicas came or went.
        passed_by: replicas by GPU type that came because a preferred type is stuck.
        limit: what kept it from being larger, None if nothing did.
    """

    wanted: dict[str, int]
    changed: int = 0
    passed_by: dict[str, int] = field(default_factory=dict)
    limit: Reason | None = None


def bounded(policy: Policy, found: Sequence[Group]) -> tuple[Group, ...]:
    """The groups with what is wanted moved into the bounds: first each type's own, then the pool's."""
    wanted = {group.type: _clamp(group) for group in found}
    missing = policy.min_replicas - sum(wanted.values())
    for group in found:
        more = min(max(missing, 0), _room(group, wanted[group.type]) if group.policy.usable else 0)
        wanted[group.type] += more
        missing -= more
    surplus = sum(wanted.values()) - policy.max_replicas
    for group in reversed(found):
        less = min(max(surplus, 0), wanted[group.type] - min(group.policy.min_replicas, wanted[group.type]))
        wanted[group.type] -= less
        surplus -= less
    return tuple(_with(group, wanted[group.type]) for group in found)


def _clamp(group: Group) -> int:
    # A type that cannot be started is neither grown to its minimum nor taken away for it.
    least = group.policy.min_replicas if group.policy.usable else 0
    most = group.policy.max_replicas
    value = max(group.now, least)
    return value if most is None else min(value, most)


def _with(group: Group, wanted: int) -> Group:
    if wanted == group.now:
        return group
    return replace(group, now=wanted, coming=group.coming + max(0, wanted - group.now))


def _room(group: Group, wanted: int) -> int:
    most = group.policy.max_replicas
    return 10**6 if most is None else max(0, most - wanted)


def standing(found: Sequence[Group]) -> dict[str, int]:
    """What is wanted already."""
    return {group.type: group.now for group in found}


def total(found: Sequence[Group]) -> int:
    """Replicas that are wanted already, over all types."""
    return sum(group.now for group in found)


def short_of(policy: Policy, found: Sequence[Group]) -> int:
    """How many replicas the pool's minimum lacks, because some of those wanted find no node or do not start."""
    return max(0, policy.min_replicas - sum(group.counted for group in found))


def grow(policy: Policy, found: Sequence[Group], need: float, budget: int) -> Move:
    """Add replicas until they can carry `need`, and until the pool's minimum counts.

    Args:
        policy: the bounds.
        found: the replicas as they are.
        need: requests to carry.
        budget: replicas that may be added now.
    """
    wanted = standing(found)
    missing, short = need - capacity(found), short_of(policy, found)
    free = max(0, policy.max_replicas - sum(wanted.values()))
    idle = {each.type: min(each.idle_top, each.now - each.policy.min_replicas) for each in found if each.stuck}
    added, passed_by, behind_stuck, limited = 0, {}, False, False
    for group in found:
        asked = max(math.ceil(missing / group.target - _EPSILON), short if group.failed == 0 else 0)
        if asked <= 0 or not group.open:
            behind_stuck |= group.stuck
            continue
        places = free + sum(max(0, each) for each in idle.values())
        asked = min(asked, _room(group, wanted[group.type]), places)
        more = min(asked, budget - added)
        limited |= more < asked
        free -= more - _give_up(wanted, idle, max(0, more - free))
        wanted[group.type] += more
        added, missing, short = added + more, missing - more * group.target, short - more
        if more and behind_stuck:
            passed_by[group.type] = more
    limit = _limit(found, limited) if missing > _EPSILON else None
    return Move(wanted=wanted, changed=added, passed_by=passed_by, limit=limit)


def _give_up(wanted: dict[str, int], idle: dict[str, int], places: int) -> int:
    """Take places from pods that find no node or do not start, where the maximum leaves no other."""
    left = places
    for name in reversed(list(idle)):
        less = min(left, max(0, idle[name]))
        wanted[name] -= less
        idle[name] -= less
        left -= less
    return places - left


def _limit(found: Sequence[Group], limited: bool) -> Reason:
    if limited:
        return Reason.GROWTH_LIMITED
    if any(group.failing for group in found):
        return Reason.STARTS_FAIL
    return Reason.NO_ROOM if any(group.homeless for group in found) else Reason.AT_MAXIMUM


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """What has to be left when replicas go.

    Attributes:
        peak: the largest need of the window.
        now: the need at present.
        spilled: replicas by GPU type that stand in for a preferred type.
        low: whether the load is low. If not, only stand-ins go.
    """

    peak: float
    now: float
    spilled: Mapping[str, int]
    low: bool

    def allows(self, left: float, *, stand_in: bool) -> bool:
        """Whether the peak still fits what is left, and the present load with some room: the check of N - 1.

        A stand-in goes for a preferred replica that has come: what is left is what was there before it came.
        """
        return self.peak <= left and (stand_in or self.now <= N_MINUS_1 * left)


def shrink(policy: Policy, found: Sequence[Group], rest: Rest, budget: int) -> Move:
    """Take replicas away, the least preferred type first, as long as the rest can carry what is needed.

    Args:
        policy: the bounds.
        found: the replicas as they are.
        rest: what has to be left.
        budget: replicas that may go now.
    """
    wanted, left = standing(found), capacity(found)
    spare = min(budget, max(0, sum(wanted.values()) - policy.min_replicas))
    removed, overload, floor = 0, False, True
    for group in reversed(found):
        stand_ins = rest.spilled.get(group.type, 0)
        most = max(0, group.now - group.policy.min_replicas)
        most = most if rest.low else min(most, stand_ins)
        gone = 0
        while gone < most and removed < spare:
            loss = 0 if gone < group.idle_top else group.target
            floor = False
            if loss and not rest.allows(left - loss, stand_in=gone < stand_ins):
                overload = True
                break
            wanted[group.type] -= 1
            left, gone, removed = left - loss, gone + 1, removed + 1
    limit = Reason.WOULD_OVERLOAD if overload else Reason.AT_MINIMUM if floor else None
    return Move(wanted=wanted, changed=removed, limit=limit)


def shrink_step(replicas: int) -> int:
    """Most replicas that go in one step."""
    return max(1, int(SHRINK_SHARE * replicas))


def growth_budget(
    growth: tuple[float, int, int] | None, replicas: int, period_s: float, now_s: float
) -> tuple[int, tuple[float, int, int]]:
    """How many replicas may be added now, and the period that this is counted in."""
    if growth is None or now_s - growth[0] >= period_s:
        growth = (now_s, replicas, 0)
    _, then, added = growth
    return max(0, max(STEP_MIN, int(STEP_SHARE * then)) - added), growth


def come_back(policy: Policy, found: Sequence[Group]) -> Move | None:
    """One more replica of a preferred type that has room, to stand in for one of a type that was only helping.

    Returns:
        None if no type stands in for another, or there is no place for one more.
    """
    if total(found) >= policy.max_replicas:
        return None
    helper = next((each for each in reversed(found) if each.now > each.policy.min_replicas), None)
    for group in found:
        if helper is None or group.type == helper.type or group.stuck:
            return None
        if group.open and _room(group, group.now):
            wanted = standing(found)
            wanted[group.type] += 1
            return Move(wanted=wanted, changed=1, passed_by={helper.type: 1})
    return None
