"""Other people's policies behind the same interface, so that the simulator and the benchmarks can compare.

Each keeps to the same limits: only replicas that may be chosen and have room. None has a budget of moves.
Not here: the product's policy (`policy`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil

from sglpool.routing import choice, rendezvous
from sglpool.routing.choice import Situation
from sglpool.routing.load import can_take, load, weight
from sglpool.routing.policy import reserve
from sglpool.routing.rules import refusal
from sglpool.routing.state import RoutingState
from sglpool.routing.types import DEFAULT_CONFIG, Decision, PickRequest, PolicyConfig, Randomness, Replica, Rule

Pick = Callable[[RoutingState, PickRequest, Mapping[str, Replica], float, Randomness, PolicyConfig], Decision]
"""The interface of a policy."""

Order = Callable[[Situation, list[Replica]], list[Replica]]
"""What a baseline is: replicas with room in, the one to take and the one after it out."""

BOUND = 1.25
"""Bounded-load hash: no replica gets more than this times the mean."""

SOFT_CAPACITY = 8
"""Most recently used with room: a replica has room below this many requests, a third above a target of six."""


def _policy(order: Order) -> Pick:
    """A policy that takes the first replica of an order."""

    def pick(
        state: RoutingState,
        request: PickRequest,
        replicas: Mapping[str, Replica],
        now_s: float,
        rng: Randomness,
        config: PolicyConfig = DEFAULT_CONFIG,
    ) -> Decision:
        return _pick(Situation(state, request, replicas, now_s, rng, config), order)

    return pick


def _pick(s: Situation, order: Order) -> Decision:
    s.state.expire(s.now_s)
    takers = [each for each in s.replicas.values() if can_take(each) and choice.has_room(s, each)]
    if not takers:
        return refusal(s)
    ranked = order(s, takers)
    old = s.conversation.home if s.conversation is not None else None
    decision = Decision(
        home=ranked[0].uid,
        second=ranked[1].uid if len(ranked) > 1 else None,
        rule=_rule(s, old, ranked[0]),
        moved=old is not None and old != ranked[0].uid,
        inputs={"load_next": load(ranked[0], s.now_s)},
    )
    reserve(s, decision, keeps_home=True)
    return decision


def _rule(s: Situation, old: str | None, chosen: Replica) -> Rule:
    if old is None:
        return Rule.NEW
    if old == chosen.uid:
        return Rule.STAY
    return Rule.FAILOVER if s.home is None or not can_take(s.home) else Rule.SPILL


def _session(s: Situation) -> str:
    return s.request.key.session if s.request.key is not None else s.request.fallback_key


def _by_session(s: Situation, takers: list[Replica]) -> list[Replica]:
    return rendezvous.rank(_session(s), takers)


def _by_bounded_session(s: Situation, takers: list[Replica]) -> list[Replica]:
    loads = {each.uid: load(each, s.now_s) for each in takers}
    bound = ceil(BOUND * (sum(loads.values()) + 1) / len(takers))
    ranked = rendezvous.rank(_session(s), takers)
    return sorted(ranked, key=lambda each: loads[each.uid] >= bound)


def _by_load(s: Situation, takers: list[Replica]) -> list[Replica]:
    keyed = {each.uid: (load(each, s.now_s) / weight(each, s.now_s, s.config), s.rng.random()) for each in takers}
    return sorted(takers, key=lambda each: keyed[each.uid])


def _by_home(s: Situation, takers: list[Replica]) -> list[Replica]:
    return sorted(_by_load(s, takers), key=lambda each: each is not s.home)


def _by_recent_use(s: Situation, takers: list[Replica]) -> list[Replica]:
    recent = [s.conversation.home] if s.conversation is not None else []
    recent += [each.uid for each in s.conversation.holders] if s.conversation is not None else []
    rank = {uid: at for at, uid in enumerate(recent)}
    roomy = [each for each in takers if load(each, s.now_s) < SOFT_CAPACITY * each.weight]
    return sorted(_shuffled(s, roomy or takers), key=lambda each: rank.get(each.uid, len(rank)))


def _shuffled(s: Situation, takers: list[Replica]) -> list[Replica]:
    keyed = {each.uid: s.rng.random() for each in takers}
    return sorted(takers, key=lambda each: keyed[each.uid])


POLICIES: Mapping[str, Pick] = {
    # Hash the session; load does not count.
    "session_hash": _policy(_by_session),
    # Hash the session, and go on to the next in its order past replicas that are above 1.25 times the mean.
    "bounded_hash": _policy(_by_bounded_session),
    # Take the least loaded for every request, wherever the conversation was (join the shortest queue).
    "least_loaded": _policy(_by_load),
    # Take the least loaded for a conversation's first request, and stay there.
    "least_loaded_sticky": _policy(_by_home),
    # Take the replica that the conversation used most recently and that has room, else any with room, by chance.
    "mru_with_room": _policy(_by_recent_use),
    # Take any.
    "random": _policy(_shuffled),
}
"""All baselines by name."""
