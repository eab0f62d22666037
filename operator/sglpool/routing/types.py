"""What the routing policy is asked, what it knows of replicas, and what it answers.

Plain values without behaviour: the picker and the simulator fill them in, `policy` reads them. Every time is in seconds
of one clock that the caller chooses (Unix time where snapshots and drain deadlines are shared between processes).
Not here: what is remembered about conversations (`state`), and how anything is decided (`policy`, `rules`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, Protocol


class Randomness(Protocol):
    """The one thing that the policy wants of a random source, so that tests and simulations can seed it."""

    def random(self) -> float:
        """Return the next number in [0, 1)."""
        ...


class ConversationKey(NamedTuple):
    """Which conversation a request belongs to; `keys` makes it from headers. Both parts are short."""

    session: str
    conversation: str


class Rule(StrEnum):
    """The rule that decided, for metrics and for whoever asks why a request went where it went."""

    NEW = "new"
    FAILOVER = "failover"
    FREE_MOVE = "free_move"
    SPILL = "spill"
    DRAIN_MOVE = "drain_move"
    DRAIN_STAY = "drain_stay"
    STAY = "stay"
    THICK = "thick"
    FULL_HOME = "full_home"
    REFUSED_HOME = "refused_home"
    RENDEZVOUS = "rendezvous"
    REFUSE = "refuse"


FINISH_TOOL_CALLS = "tool_calls"
"""The model asked for tools: the conversation is back within seconds."""

FINISHES = frozenset({FINISH_TOOL_CALLS, "stop", "length", "abort", "unknown"})
"""Finish reasons of all the serving APIs, in the names of chat completions."""


@dataclass(slots=True, kw_only=True)
class Replica:
    """One engine pod as this router sees it. The caller keeps it up to date; pick and release keep the own counts.

    Attributes:
        uid: the pod's uid. A new pod is a new replica, also under the same name and address.
        address: `ip:port` of the engine.
        weight: capacity relative to the others; 1 is the pool's smallest GPU type.
        ready_since_s: when it became able to serve; its weight ramps up from then.
        healthy: ready, and its polls are answered.
        proven: its revision may take traffic. False while a roll-out's gate runs.
        draining: it gets no new conversation and is going to be removed.
        drain_deadline_s: when the conversations that are left move; None means that there is no hurry.
        own_in_flight: requests that this router has on it.
        others_in_flight: requests that other routers have on it, from their heartbeats.
        others_pending: conversations about to come back to it that other routers have served, from their heartbeats.
        polled_in_flight: running plus waiting of the last good poll, None before the first.
        polled_at_s: when that poll was answered.
        own_picks_since_poll: requests sent to it since that poll.
        own_releases_since_poll: requests of this router that ended on it since that poll.
        kv_used_tokens: tokens that running requests hold.
        kv_total_tokens: tokens that fit, 0 while unknown.
        prefilling: the poll showed no request but tokens in use: a chunked prefill is in neither count.
        refused: it refused a request and is out of the choice until a good poll says that it has room.
        max_concurrent: requests that may be on it, of all routers together.
        prefill_tokens_per_s: measured prefill rate, None while unknown.
        prefill_until_s: when it will have computed the prompts that it was sent, as far as this router can guess.
        prefill_left_tokens: of these prompts, what was left at the last poll.
        prefill_done_tokens: how far it was by then: the further back in a prompt, the more a token costs.
    """

    uid: str
    address: str
    weight: float = 1.0
    ready_since_s: float = 0.0
    healthy: bool = True
    proven: bool = True
    draining: bool = False
    drain_deadline_s: float | None = None
    own_in_flight: int = 0
    others_in_flight: int = 0
    others_pending: int = 0
    polled_in_flight: int | None = None
    polled_at_s: float | None = None
    own_picks_since_poll: int = 0
    own_releases_since_poll: int = 0
    kv_used_tokens: int = 0
    kv_total_tokens: int = 0
    prefilling: bool = False
    refused: bool = False
    max_concurrent: int = 64
    prefill_tokens_per_s: float | None = None
    prefill_until_s: float = 0.0
    prefill_left_tokens: int = 0
    prefill_done_tokens: int = 0


class PickRequest(NamedTuple):
    """A request to place, as far as headers tell.

    Attributes:
        key: its conversation, None if nothing identifies one: then it is placed and nothing is remembered.
        body_bytes: its content length.
        fallback_key: what rendezvous hashes, so that all routers agree without a store. Envoy's ring hash has the same.
    """

    key: ConversationKey | None
    body_bytes: int
    fallback_key: str


class Decision(NamedTuple):
    """Where a request goes, and why.

    Attributes:
        home: uid of the replica that gets it; a slot is reserved there. None: it is refused.
        second: uid for the one retry, None if there is no other. No slot is reserved there.
        rule: the rule that decided.
        moved: the conversation has another home than before.
        forced: it lost warm KV because it had to leave (dead home, drain deadline), not because it chose to.
        retry_after_s: for a refusal, when to try again; 0 when no replica is there to wait for.
        inputs: the loads, scores and estimates that decided.
    """

    home: str | None
    second: str | None
    rule: Rule
    moved: bool = False
    forced: bool = False
    retry_after_s: float = 0.0
    inputs: Mapping[str, float] = MappingProxyType({})


class Outcome(NamedTuple):
    """What is known when a request has ended.

    Attributes:
        key: its conversation, as in the request.
        replica_uid: the replica on which `pick` reserved its slot.
        body_bytes: its content length.
        prompt_tokens: from the response's usage, None if it had none.
        cached_tokens: prompt tokens that the engine had cached.
        completion_tokens: tokens generated.
        finish: one of `FINISHES`.
        refused: the replica refused it (503, or the error event inside a 200).
        served_uid: the replica that really served it, where that was another one (the retry); None: the reserved one.
    """

    key: ConversationKey | None
    replica_uid: str
    body_bytes: int
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    finish: str = "unknown"
    refused: bool = False
    served_uid: str | None = None


_POSITIVE = (
    "ramp_floor",
    "ttl_s",
    "max_conversations",
    "prefill_tokens_per_s",
    "attention_doubles_tokens",
    "tokens_per_byte",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """Every constant of the policy. The defaults are those that were simulated.

    Attributes:
        idle_weight: what a conversation that waits for its tools adds to a score, in requests (alpha).
        idle_pending_s: how long after `tool_calls` a conversation counts as about to come back.
        kv_weight: what a full KV pool adds to a score, in requests.
        prefill_weight: what a second of prefill still to be done adds to a score, in requests.
        thick_requests: requests of one session, or one conversation, that a replica takes without a penalty (S).
        spill_min_load: a home below this load is never spilled (rule 3).
        spill_min_difference: load difference below which nothing spills (d); 2 with a shared KV tier.
        spill_per_migration_s: load difference that a second of re-prefill must be worth (c).
        spill_min_wait_s: a prompt that waits less than this for others' prefill at home is not spilled for that.
        spill_wait_per_migration_s: what has to be waited less, elsewhere, for a second of re-prefill.
        return_difference: load difference from which a conversation goes back to a replica that holds nearly all of it;
            such a move costs so little that it needs no budget.
        return_migration_s: re-prefill that still counts as nearly nothing.
        spill_budget: spills per request, at most.
        spill_burst: spills that may be saved up.
        free_move_difference: load difference from which a conversation without warm KV moves (rule 2).
        warm_fraction: a reusable prefix below this part of the prompt is no reason to stay.
        reset_fraction: a body below this part of the last one starts over (a compaction, a cleared session).
        ramp_s: how long a new replica's weight grows from nearly 0 to 1.
        ramp_floor: the weight at the start of that ramp.
        ttl_s: how long a conversation is remembered.
        max_conversations: conversations remembered, oldest out.
        max_holders: replicas remembered, besides its home, that hold a prefix of a conversation.
        prefill_tokens_per_s: prefill rate of a replica that has not measured its own, on a prompt of the next length.
        prefill_prompt_tokens: that length, nothing of it cached.
        attention_doubles_tokens: context at which attention has doubled what a token costs in prefill.
        tokens_per_byte: tokens in a byte of body, before any usage was seen.
        side_request_bytes: a request up to this size, and far shorter than its conversation, is an aside (a title, a
            summary of one line) that says nothing about the conversation's length.
        min_residency_s: a cache miss after a shorter pause says nothing about how long KV stays.
        retry_after_s: the shortest Retry-After of a refusal; the longest is twice that, so that clients spread.
    """

    idle_weight: float = 0.65
    idle_pending_s: float = 60.0
    kv_weight: float = 1.0
    prefill_weight: float = 1.0
    thick_requests: int = 3
    spill_min_load: float = 3.0
    spill_min_difference: float = 3.0
    spill_per_migration_s: float = 4.0
    spill_min_wait_s: float = 6.0
    spill_wait_per_migration_s: float = 4.0
    return_difference: float = 3.0
    return_migration_s: float = 0.5
    spill_budget: float = 0.02
    spill_burst: float = 10.0
    free_move_difference: float = 1.0
    warm_fraction: float = 0.5
    reset_fraction: float = 0.8
    ramp_s: float = 60.0
    ramp_floor: float = 0.05
    ttl_s: float = 4 * 3600.0
    max_conversations: int = 100_000
    max_holders: int = 4
    prefill_tokens_per_s: float = 16_000.0
    prefill_prompt_tokens: float = 100_000.0
    attention_doubles_tokens: float = 33_000.0
    tokens_per_byte: float = 0.25
    side_request_bytes: int = 32_768
    min_residency_s: float = 60.0
    retry_after_s: float = 2.0

    def __post_init__(self) -> None:
        """Refuse what would divide by zero or remember nothing.

        Raises:
            ValueError: names the field, its value and what it must be.
        """
        for name in (each.name for each in fields(self)):
            if not getattr(self, name) >= 0:
                raise ValueError(f"routing policy: {name} is {getattr(self, name)}; it must be 0 or more")
        for name in _POSITIVE:
            if getattr(self, name) == 0:
                raise ValueError(f"routing policy: {name} is 0; it must be more than 0")
        if self.spill_budget > 1:
            raise ValueError(
                f"routing policy: spill_budget is {self.spill_budget}; it is a part of all requests, 0 to 1"
            )


DEFAULT_CONFIG = PolicyConfig()
"""The policy as it was simulated."""
