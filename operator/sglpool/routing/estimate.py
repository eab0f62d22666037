"""What a router can guess about a prompt it never reads: its tokens, and how many of them a replica still holds.

Bytes become tokens by a ratio learned from usage. A body clearly shorter than the last one is a reset (a compaction, a
cleared session): its prefix is gone. A pause longer than the replica was seen to keep KV means that it is evicted.
Not here: what follows from that (`rules`).
"""

from __future__ import annotations

from sglpool.routing.records import Holder
from sglpool.routing.state import Conversation, RoutingState
from sglpool.routing.types import FINISH_TOOL_CALLS, Outcome, PickRequest, PolicyConfig, Replica

LEARN = 0.3
"""Part of the way that one conversation's figures, and a replica's residency, go towards a new reading."""

LEARN_HIT = 0.5
"""The same towards a hit after a longer pause: whoever is believed to be cold may leave, so that hits are rarer."""

MIN_MISSES = 3
"""Misses of a replica, without a hit after as long a pause, before they mean evictions."""

LEARN_POOL = 0.02
"""The same as the first for the pool's ratio, which sees many conversations."""

HOLDER_SLACK = 1.1
"""A holder with more tokens than the prompt, beyond the error of the estimate, holds no prefix of it."""

LEARN_SHARED = 0.1
"""The same for the prefix that all prompts share, which is seen wherever a conversation is new."""

MIN_EXPECTED_TOKENS = 1024
"""Below this expectation a miss says nothing: a page or a shared system prompt blurs it."""

REWRITTEN_BELOW = 0.9
"""A home that could use less of what it had was asked something else. Answers come back with other tokens at times."""

GOES_ON_ABOVE = 0.8
"""A prompt of which an earlier one is at least this part goes on from there; a shorter one is more likely another."""

SIDE_FRACTION = 0.125
"""An aside is shorter than this part of its conversation. Compactions leave more: tools, system and the summary."""


def prompt_tokens(state: RoutingState, conversation: Conversation | None, body_bytes: int) -> float:
    """Return the tokens of a body, by the conversation's own ratio, else by the pool's."""
    own = conversation.tokens_per_byte if conversation is not None else 0.0
    return body_bytes * (own or state.tokens_per_byte)


def is_side_request(conversation: Conversation, body_bytes: int, config: PolicyConfig) -> bool:
    """Return whether a request is an aside, whose length says nothing about the conversation."""
    return body_bytes <= config.side_request_bytes and body_bytes < SIDE_FRACTION * conversation.ctx_bytes


def is_evicted(state: RoutingState, uid: str, idle_s: float) -> bool:
    """Return whether a pause was longer than that replica was seen to keep KV."""
    residency_s = state.residency_s.get(uid)
    return residency_s is not None and idle_s > residency_s


def reusable_tokens(
    state: RoutingState, conversation: Conversation, request: PickRequest, now_s: float, prompt: float
) -> float:
    """Return the tokens of this prompt that the home still holds."""
    if conversation.running:
        return prompt
    config, body_bytes = state.config, request.body_bytes
    tells_length = not (conversation.mixed or is_side_request(conversation, body_bytes, config))
    if tells_length and body_bytes < config.reset_fraction * conversation.ctx_bytes:
        # It has started over.
        return 0.0
    if conversation.home is None or is_evicted(state, conversation.home, now_s - conversation.last_seen_s):
        return 0.0
    if not tells_length:
        return prompt
    at_home = min(float(conversation.ctx_tokens), prompt)
    if conversation.earlier is None:
        return at_home
    return max(at_home, _held_from_before(state, conversation.earlier, now_s, prompt))


def _held_from_before(state: RoutingState, earlier: Holder, now_s: float, prompt: float) -> float:
    """Return what the home holds of a longer prompt that came before a shorter one: before an aside, or a compaction.

    After an aside the prompt is as long as the one before it, and a little longer.
    """
    tokens = held_tokens(state, earlier, now_s, prompt)
    return tokens if tokens >= prompt * GOES_ON_ABOVE else 0.0


def held_tokens(state: RoutingState, holder: Holder, now_s: float, prompt: float) -> float:
    """Return the tokens of this prompt that another replica still holds."""
    if holder.tokens > prompt * HOLDER_SLACK or is_evicted(state, holder.uid, now_s - holder.seen_s):
        return 0.0
    return min(float(holder.tokens), prompt)


def prefill_s(state: RoutingState, replica: Replica, tokens: float, warm: float) -> float:
    """Return the seconds that a replica needs for a prompt of which it holds the first `warm` tokens already.

    A token costs more the further back it stands, since attention looks at all before it. Replicas measure their rate
    on the ends of long prompts, because nearly all that they compute is what was added to a conversation; a whole
    prompt anew is cheaper per token than that.
    """
    config = state.config
    measured = replica.prefill_tokens_per_s
    if measured is not None and measured > 0:
        rate, at = measured, state.mean_prompt_tokens
    else:
        rate, at = config.prefill_tokens_per_s, config.prefill_prompt_tokens / 2
    doubles = config.attention_doubles_tokens
    first_rate = rate * (1.0 + at / doubles)
    anew = max(0.0, tokens - warm)
    return anew / first_rate * (1.0 + (warm + anew / 2) / doubles)


def note_prefill(state: RoutingState, replica: Replica, uncached_tokens: int, now_s: float) -> None:
    """Take from a poll what a replica still has to compute.

    It replaces what this router made of its own requests: of a history that was rewritten, only the engine knows.
    """
    done_tokens = replica.prefill_done_tokens + max(0, replica.prefill_left_tokens - uncached_tokens)
    replica.prefill_done_tokens = done_tokens if uncached_tokens else 0
    replica.prefill_left_tokens = uncached_tokens
    replica.prefill_until_s = now_s + prefill_s(state, replica, done_tokens + uncached_tokens, done_tokens)


def learn(state: RoutingState, conversation: Conversation | None, outcome: Outcome, now_s: float) -> None:
    """Take from a response what it says: the ratio of tokens to bytes, what the replica holds now, and evictions."""
    if outcome.prompt_tokens is not None and outcome.prompt_tokens > 0 and outcome.body_bytes > 0:
        ratio = outcome.prompt_tokens / outcome.body_bytes
        state.mean_prompt_tokens += LEARN_POOL * (outcome.prompt_tokens - state.mean_prompt_tokens)
        state.tokens_per_byte += LEARN_POOL * (ratio - state.tokens_per_byte)
        if conversation is not None:
            own = conversation.tokens_per_byte
            conversation.tokens_per_byte = own + LEARN * (ratio - own) if own else ratio
    if conversation is None:
        return
    if conversation.running is None and outcome.finish in (FINISH_TOOL_CALLS, "stop", "length"):
        conversation.last_finish = outcome.finish
    if not is_side_request(conversation, outcome.body_bytes, state.config):
        _learn_shared(state, conversation, outcome)
        _learn_residency(state, conversation, outcome)
        _learn_context(state, conversation, outcome, now_s)


def _learn_context(state: RoutingState, conversation: Conversation, outcome: Outcome, now_s: float) -> None:
    """Note what the replica that served it holds now: the home's context, or another holder's."""
    served = outcome.served_uid or outcome.replica_uid
    tokens = _tokens_after(state, conversation, outcome)
    if served != conversation.home:
        conversation.add_holder(Holder(served, tokens, now_s), state.config.max_holders)
    elif conversation.mixed:
        conversation.ctx_tokens = max(conversation.ctx_tokens, tokens)
        conversation.ctx_bytes = max(conversation.ctx_bytes, outcome.body_bytes)
    else:
        _learn_rewrite(state, conversation, outcome)
        if outcome.body_bytes < state.config.reset_fraction * conversation.ctx_bytes:
            conversation.earlier = Holder(served, conversation.ctx_tokens, now_s - conversation.idle_s)
        conversation.ctx_tokens = tokens
        conversation.ctx_bytes = outcome.body_bytes


def _learn_rewrite(state: RoutingState, conversation: Conversation, outcome: Outcome) -> None:
    """Learn that a history was rewritten: the home had more of the old one than it could use.

    The prompt parts from the old history where the home's cache ended, so no other holder of that history has more of
    it. Where the home had evicted it, the holders are only believed to have less than they have.
    """
    cached = outcome.cached_tokens
    if cached is None or not conversation.holders:
        return
    expected = min(conversation.ctx_tokens, outcome.prompt_tokens or 0)
    if cached < expected * REWRITTEN_BELOW:
        conversation.holders = tuple(each._replace(tokens=min(each.tokens, cached)) for each in conversation.holders)


def _tokens_after(state: RoutingState, conversation: Conversation, outcome: Outcome) -> int:
    prompt = outcome.prompt_tokens
    if prompt is None:
        return int(prompt_tokens(state, conversation, outcome.body_bytes))
    return prompt + (outcome.completion_tokens or 0)


def _learn_shared(state: RoutingState, conversation: Conversation, outcome: Outcome) -> None:
    """Learn what a replica has of a conversation that it never saw: tools and system prompt, the same for everyone."""
    served = outcome.served_uid or outcome.replica_uid
    if outcome.cached_tokens is None or conversation.mixed or served != conversation.home or conversation.ctx_tokens:
        return
    state.shared_tokens += LEARN_SHARED * (outcome.cached_tokens - state.shared_tokens)


def _learn_residency(state: RoutingState, conversation: Conversation, outcome: Outcome) -> None:
    """Learn from hits and misses how long the home keeps KV that nobody uses.

    Only from prompts that went on where the last one ended: a rewritten history misses whatever the cache holds.
    """
    home = conversation.home
    served = outcome.served_uid or outcome.replica_uid
    if outcome.cached_tokens is None or outcome.prompt_tokens is None or home != served or conversation.mixed:
        return
    expected = min(conversation.ctx_tokens, outcome.prompt_tokens)
    if expected < MIN_EXPECTED_TOKENS or outcome.body_bytes < conversation.ctx_bytes:
        return
    if outcome.cached_tokens >= expected * state.config.warm_fraction:
        _learn_hit(state, home, conversation.idle_s)
    elif conversation.idle_s >= state.config.min_residency_s:
        _learn_miss(state, home, conversation.idle_s)


def _learn_hit(state: RoutingState, uid: str, idle_s: float) -> None:
    known_s = state.residency_s.get(uid)
    if known_s is not None and idle_s > known_s:
        state.residency_s[uid] = known_s + LEARN_HIT * (idle_s - known_s)
    misses_s = state.misses_s.get(uid)
    if misses_s is not None and idle_s > min(misses_s):
        del state.misses_s[uid]


def _learn_miss(state: RoutingState, uid: str, idle_s: float) -> None:
    """A single miss may have any reason. Several, and no hit after as long a pause: KV does not stay that long."""
    misses_s = (*state.misses_s.get(uid, ()), idle_s)
    if len(misses_s) < MIN_MISSES:
        state.misses_s[uid] = misses_s
        return
    state.residency_s[uid] = min(max(misses_s), state.residency_s.get(uid, max(misses_s)))
    del state.misses_s[uid]
