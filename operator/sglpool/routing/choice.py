"""Who is next: scores of replicas, the two best of them, and replicas that hold a prefix already.

One pass over the replicas per choice, nothing sorted. Not here: whether the home is left at all (`rules`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import NamedTuple

from sglpool.routing import estimate
from sglpool.routing.load import can_take, load, weight
from sglpool.routing.records import Holder
from sglpool.routing.state import Conversation, RoutingState
from sglpool.routing.types import PickRequest, PolicyConfig, Randomness, Replica


class Candidate(NamedTuple):
    """A replica that may take a request, with the figures that rank it. Lower is better.

    A new replica's ramp is in the score alone: it holds back requests that would come to it for the first time. What is
    there already is no heavier for it.

    Attributes:
        replica: the replica.
        score: its level, higher while it is new: whoever has to go somewhere goes to the lowest.
        level: load, conversations about to come back, KV, prefill still to be done and the session's own crowd there,
            over its full weight.
        pressure: its load over its full weight: by the difference of two, a conversation leaves its home or stays.
    """

    replica: Replica
    score: float
    level: float
    pressure: float


class Situation:
    """One request to place: all that the rules look at.

    Attributes:
        state: the router's memory.
        request: the request.
        replicas: all replicas, by uid.
        now_s: the time.
        rng: breaks ties.
        config: the constants.
        conversation: what is remembered of its conversation, None if it is new or has no key.
        home: that conversation's home if it is still a replica.
        home_load: the load of the home, 0 without one.
        prompt: estimated tokens of the request.
        warm: estimated tokens of it that the home still holds.
    """

    __slots__ = (
        "config",
        "conversation",
        "home",
        "home_load",
        "now_s",
        "prompt",
        "replicas",
        "request",
        "rng",
        "session",
        "state",
        "warm",
    )

    def __init__(
        self,
        state: RoutingState,
        request: PickRequest,
        replicas: Mapping[str, Replica],
        now_s: float,
        rng: Randomness,
        config: PolicyConfig,
    ) -> None:
        self.state = state
        self.request = request
        self.replicas = replicas
        self.now_s = now_s
        self.rng = rng
        self.config = config
        key = request.key
        self.conversation: Conversation | None = state.get(key) if key is not None else None
        uid = self.conversation.home if self.conversation is not None else None
        self.home = replicas.get(uid) if uid is not None else None
        # Once for all the rules: a pick asks for it several times.
        self.home_load = load(self.home, now_s) if self.home is not None else 0.0
        self.session = state.sessions.get(key.session, {}) if key is not None else {}
        self.prompt = estimate.prompt_tokens(state, self.conversation, request.body_bytes)
        self.warm = 0.0
        if self.conversation is not None:
            self.warm = estimate.reusable_tokens(state, self.conversation, request, now_s, self.prompt)


def candidate(s: Situation, replica: Replica) -> Candidate:
    """Return a replica with its figures, whether or not it may be chosen."""
    requests = load(replica, s.now_s)
    burden = _burden(s, replica, requests)
    full = replica.weight
    return Candidate(replica, burden / weight(replica, s.now_s, s.config), burden / full, requests / full)


def _burden(s: Situation, replica: Replica, requests: float) -> float:
    """Return all that weighs on a replica, in requests."""
    config = s.config
    uid = replica.uid
    total = replica.kv_total_tokens
    used = replica.kv_used_tokens / total if total > 0 else 0.0
    tally = s.state.tallies.get(uid)
    returning = replica.others_pending + (tally.pending if tally is not None else 0)
    burden = requests + config.idle_weight * returning + config.kv_weight * used
    if s.session:
        burden += max(0, s.session.get(uid, 0) + 1 - config.thick_requests)
    if replica.prefill_until_s > s.now_s:
        burden += config.prefill_weight * (replica.prefill_until_s - s.now_s)
    return burden


def is_better(one: Candidate, other: Candidate) -> bool:
    """Return whether a place is the better one both as it is and, if one of them is new, as it counts meanwhile."""
    return one.score < other.score and one.level < other.level


def has_room(s: Situation, replica: Replica) -> bool:
    """Return whether one more request keeps a replica within its limit."""
    return load(replica, s.now_s) < replica.max_concurrent


def two_best(s: Situation, without: Replica | None) -> tuple[Candidate | None, Replica | None]:
    """Return the two replicas of the lowest score; ties go to the one with fewer conversations, then by chance."""
    now_s, config = s.now_s, s.config
    best: Replica | None = None
    runner: Replica | None = None
    best_score = runner_score = 0.0
    # Most of a pick's time: nothing is made for a replica but its score, and the figures of the best one at the end.
    for replica in s.replicas.values():
        if replica is without or not can_take(replica):
            continue
        requests = load(replica, now_s)
        if requests >= replica.max_concurrent:
            continue
        score = _burden(s, replica, requests) / weight(replica, now_s, config)
        if best is None or score < best_score or (score == best_score and _wins_tie(s, replica, best)):
            runner, runner_score = best, best_score
            best, best_score = replica, score
        elif runner is None or score < runner_score or (score == runner_score and _wins_tie(s, replica, runner)):
            runner, runner_score = replica, score
    return candidate(s, best) if best is not None else None, runner


def lowest_pressure(s: Situation, replicas: Iterable[Replica]) -> float:
    """Return the pressure of the least busy of these that may take a request from elsewhere, infinity without one.

    Nobody who is chosen among them has less, which tells cheaply that a conversation stays: before scores are made.
    """
    lowest = inf
    for replica in replicas:
        if can_take(replica):
            pressure = load(replica, s.now_s) / replica.weight
            if pressure < lowest:
                lowest = pressure
    return lowest


def _wins_tie(s: Situation, one: Replica, other: Replica) -> bool:
    mine, theirs = s.state.homed(one.uid), s.state.homed(other.uid)
    return mine < theirs if mine != theirs else s.rng.random() < 0.5


def next_best(s: Situation, without: Replica | None) -> tuple[Candidate | None, Replica | None]:
    """Return where a conversation goes when it leaves its home, and who is next after that.

    A replica that holds a prefix of it is taken like a home: unless it is so much busier that a spill would leave it.
    """
    best, runner = two_best(s, without)
    if best is None or s.conversation is None or not s.conversation.holders:
        return best, runner
    warm = _best_holder(s, s.conversation, without, best)
    if warm is None or warm.replica is best.replica:
        return best, runner
    return warm, best.replica


def _best_holder(
    s: Situation, conversation: Conversation, without: Replica | None, best: Candidate
) -> Candidate | None:
    chosen: Candidate | None = None
    chosen_gain = 0.0
    for holder in conversation.holders:
        replica = s.replicas.get(holder.uid)
        if replica is None or replica is without or not can_take(replica) or not has_room(s, replica):
            continue
        if conversation.running_on(holder.uid) >= s.config.thick_requests:
            continue
        each = candidate(s, replica)
        worth = spill_difference(s.config, migration_s(s, replica, 0.0, held(s, holder)))
        gain = worth - (each.level - best.level)
        if held(s, holder) > 0 and gain > chosen_gain:
            chosen, chosen_gain = each, gain
    return chosen


def held(s: Situation, holder: Holder) -> float:
    """Return the tokens of this prompt that a holder still has."""
    return estimate.held_tokens(s.state, holder, s.now_s, s.prompt)


def held_on(s: Situation, uid: str) -> float:
    """Return the tokens of this prompt that a replica other than the home still has."""
    if s.conversation is not None:
        for holder in s.conversation.holders:
            if holder.uid == uid:
                return held(s, holder)
    return 0.0


def held_or_shared(s: Situation, tokens: float) -> float:
    """Return what a replica with so many tokens of this conversation can reuse: at least what all prompts share."""
    return max(tokens, min(s.state.shared_tokens, s.warm))


def migration_s(s: Situation, replica: Replica, held_tokens: float, lost_tokens: float) -> float:
    """Return the seconds that a replica needs for tokens which it does not hold and another one does."""
    return estimate.prefill_s(s.state, replica, max(held_tokens, lost_tokens), held_tokens)


def prefill_s(s: Situation, replica: Replica) -> float:
    """Return the seconds of prefill that this request is expected to cost a replica."""
    held_tokens = s.warm if replica is s.home else held_on(s, replica.uid)
    shared_tokens = min(s.state.shared_tokens, s.prompt)
    return estimate.prefill_s(s.state, replica, s.prompt, max(held_tokens, shared_tokens))


def spill_difference(config: PolicyConfig, seconds: float) -> float:
    """Return the difference of loads from which a conversation leaves warm KV worth that many seconds."""
    return max(config.spill_min_difference, config.spill_per_migration_s * seconds)


def spill_wait_s(config: PolicyConfig, seconds: float) -> float:
    """Return the difference of waits from which a conversation leaves warm KV worth that many seconds."""
    return max(config.spill_min_wait_s, config.spill_wait_per_migration_s * seconds)


def any_other(s: Situation, without: Replica) -> Replica | None:
    """Return a second host for a request that stays: a prefix holder, else one that is drawn by chance.

    No pass over all replicas: most requests stay, and most never need their second host.
    """
    if s.conversation is not None:
        for holder in s.conversation.holders:
            replica = s.replicas.get(holder.uid)
            if replica is not None and replica is not without and can_take(replica) and has_room(s, replica):
                return replica
    everyone = list(s.replicas.values())
    for part in (s.rng.random(), s.rng.random()):
        drawn = everyone[int(part * len(everyone))]
        if drawn is not without and can_take(drawn) and has_room(s, drawn):
            return drawn
    best, _ = two_best(s, without)
    return best.replica if best is not None else None
