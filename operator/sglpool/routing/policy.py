"""The routing policy: pick a replica for a request, count it, and learn from how the request ended.

`pick` reserves at once, `release` and `lapse` give the slot back: each pick is followed by exactly one of them.
The rules are in `rules`; other policies with the same interface, for comparison, are in `baselines`.
Not here: I/O, clocks, and the upkeep of Replica objects, apart from the router's own counts.
"""

from __future__ import annotations

from collections.abc import Mapping

from sglpool.routing import choice, estimate
from sglpool.routing.choice import Situation
from sglpool.routing.records import Holder
from sglpool.routing.rules import decide
from sglpool.routing.state import Conversation, RoutingState
from sglpool.routing.types import (
    DEFAULT_CONFIG,
    FINISH_TOOL_CALLS,
    ConversationKey,
    Decision,
    Outcome,
    PickRequest,
    PolicyConfig,
    Randomness,
    Replica,
    Rule,
)


def pick(
    state: RoutingState,
    request: PickRequest,
    replicas: Mapping[str, Replica],
    now_s: float,
    rng: Randomness,
    config: PolicyConfig = DEFAULT_CONFIG,
) -> Decision:
    """Decide where a request goes and reserve its slot there.

    Args:
        state: the router's memory, changed.
        request: what is known of the request.
        replicas: every replica by uid, in an order that does not matter; own counts change.
        now_s: the time, never earlier than in the call before.
        rng: breaks ties.
        config: the constants; the same that the state was made with.

    Returns:
        The decision; without a home if the request is refused, and then nothing is reserved.
    """
    state.expire(now_s)
    state.spill_tokens = min(config.spill_burst, state.spill_tokens + config.spill_budget)
    s = Situation(state, request, replicas, now_s, rng, config)
    decision = decide(s)
    if decision.rule is Rule.SPILL:
        state.spill_tokens -= 1.0
    reserve(s, decision, keeps_home=state.store_available)
    return decision


def reserve(s: Situation, decision: Decision, *, keeps_home: bool) -> None:
    """Count a decided request on its replica and in its conversation.

    Args:
        s: the request.
        decision: where it goes.
        keeps_home: the conversation lives, from now on, where the decision says it does.
    """
    if decision.home is None:
        return
    replica = s.replicas[decision.home]
    replica.own_in_flight += 1
    replica.own_picks_since_poll += 1
    replica.prefill_until_s = max(replica.prefill_until_s, s.now_s) + choice.prefill_s(s, replica)
    key = s.request.key
    if key is None:
        return
    conversation = s.conversation
    if keeps_home or conversation is not None:
        conversation = _seen(s, key)
    if keeps_home and conversation is not None and (decision.moved or conversation.home is None):
        _settle(s, conversation, decision.home)
    s.state.start(key, conversation, decision.home)


def _seen(s: Situation, key: ConversationKey) -> Conversation:
    known = s.conversation
    before_s = known.last_seen_s if known is not None else s.now_s
    conversation = s.state.touch(key, s.now_s)
    conversation.idle_s = s.now_s - before_s
    if conversation.running is None and conversation.mixed > 0:
        conversation.mixed -= 1
    s.state.clear_pending(conversation)
    return conversation


def _settle(s: Situation, conversation: Conversation, uid: str) -> None:
    """Give a conversation a home. The old one becomes a holder of what it has."""
    held = int(choice.held_on(s, uid))
    old = conversation.home
    old_tokens = conversation.ctx_tokens
    seen_s = s.now_s - conversation.idle_s
    s.state.set_home(conversation, uid)
    if old is not None and old in s.replicas:
        conversation.add_holder(Holder(old, old_tokens, seen_s), s.config.max_holders)
    conversation.ctx_tokens = held


def release(
    state: RoutingState,
    replicas: Mapping[str, Replica],
    outcome: Outcome,
    now_s: float,
    config: PolicyConfig = DEFAULT_CONFIG,
) -> None:
    """Give back the slot of a request that ended, and learn from its usage.

    Args:
        state: the router's memory, changed.
        replicas: every replica by uid; one that is gone is no error.
        outcome: how it ended.
        now_s: the time.
        config: the constants.
    """
    _give_back(replicas, outcome.replica_uid)
    served = replicas.get(outcome.served_uid or outcome.replica_uid)
    if outcome.refused and served is not None:
        served.refused = True
    conversation = None
    if outcome.key is not None:
        conversation = state.end(outcome.key, outcome.replica_uid)
    if conversation is not None:
        state.touch(conversation.key, now_s)
    if not outcome.refused:
        estimate.learn(state, conversation, outcome, now_s)
    if conversation is not None and conversation.running is None and outcome.finish == FINISH_TOOL_CALLS:
        state.set_pending(conversation, now_s)


def lapse(
    state: RoutingState,
    replicas: Mapping[str, Replica],
    key: ConversationKey | None,
    replica_uid: str,
    now_s: float,
) -> None:
    """Give back a reservation that nobody confirmed: the request never came, or went elsewhere. Nothing is learned.

    Args:
        state: the router's memory, changed.
        replicas: every replica by uid.
        key: the request's conversation.
        replica_uid: where its slot was reserved.
        now_s: the time.
    """
    del now_s  # A request that never came is no sign of life of its conversation.
    _give_back(replicas, replica_uid)
    if key is not None:
        state.end(key, replica_uid)


def _give_back(replicas: Mapping[str, Replica], uid: str) -> None:
    replica = replicas.get(uid)
    if replica is not None:
        if replica.own_in_flight > 0:
            replica.own_in_flight -= 1
        replica.own_releases_since_poll += 1
