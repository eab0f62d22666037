"""Coding-agent sessions with the statistics of real ones: contexts, outputs, gaps, compactions, wide sessions.

The figures come from published corpora of coding-agent sessions (about 50,000 requests); a distribution is a
lognormal where its quantiles allow. Clients are a closed loop: a session's next request follows its last answer, and
a session that has ended is replaced by a new one. Not here: time, and where a request goes.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from sglpool.enginemodel.config import BLOCK_ID_BYTES

SHARED_PREFIX_TOKENS = 14_900
"""Tools and system prompt, the same for every user of a harness."""
MAX_CONTEXT_TOKENS = 256_000
USUAL_CONTEXT_TOKENS = 170_000
"""Where some harnesses compact at the latest; the others do at the model's limit."""
USUAL_CONTEXT_SHARE = 0.35
FRESH_SHARE = 0.7
"""Sessions that begin anew; the others resume an older one and bring its context."""
COMPACTIONS_PER_REQUEST = 0.004
COMPACTION_LEAST_TOKENS = 40_000
REWRITES_PER_REQUEST = 0.009
REWRITES_AFTER_USER = 0.035
"""A prompt as long as before that keeps nothing but the shared prefix: a harness changed its early part. No router can
see that in a length; it is 1.3 % of all requests."""
ROOM_FOR_OUTPUT_TOKENS = 16_000
WIDE_SHARE = 0.06
WIDEST = (4, 16)
LONGEST_USER_GAP_S = 600.0
LONGEST_TOOL_GAP_S = 600.0
LONGEST_CONVERSATION_REQUESTS = 400
REMEMBERED_PROMPTS = 12
"""Earlier prompts of a conversation that a later one may go on from: published corpora looked as far back."""


class Kind(StrEnum):
    """What clients are like."""

    AUTONOMOUS = "autonomous"
    THICK = "thick"
    INTERACTIVE = "interactive"


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a conversation.

    Attributes:
        prompt_tokens: its prompt.
        kept_tokens: how much of that is the unchanged beginning of the prompt before, or of the last one before that
            was so long: what follows an aside goes on from the prompt before the aside.
        output_tokens: what it will produce.
        finish: "tool_calls" if the agent goes on by itself, "stop" if a user has to speak.
        gap_s: pause between its end and the next request.
    """

    prompt_tokens: int
    kept_tokens: int
    output_tokens: int
    finish: str
    gap_s: float


@dataclass(frozen=True, slots=True)
class Lognormal:
    """A lognormal by its median."""

    median: float
    sigma: float

    def draw(self, rng: random.Random) -> float:
        """One value."""
        return self.median * math.exp(rng.gauss(0.0, self.sigma))


REQUESTS = Lognormal(45.5, 0.92)
"""Requests of a session: p50 45.5, mean 69.5, p90 157."""
FRESH_EXTRA = Lognormal(5_500, 1.0)
RESUMED = Lognormal(115_000, 0.6)
GROWTH = Lognormal(655, 1.32)
"""What a step adds to the context, the output before it included: p50 655, p90 3.5k, p99 16k."""
OUTPUT = Lognormal(216, 1.15)
"""p50 216, p90 0.9k, mean 0.44k."""
REQUESTS_PER_USER_TURN = Lognormal(1.6, 1.9)
"""p50 1, p75 4, p90 13, mean 6."""
TOOL_GAP_S = Lognormal(1.0, 1.2)
"""Tools in a sandbox are quick: p50 1 s, mean 2 s."""
USER_GAP_S = Lognormal(100.0, 1.6)


class Conversation:
    """One line of requests whose prompts grow: an agent with its context.

    Attributes:
        session: id that its harness sends.
        conversation: id of the conversation inside the session.
        leads: its session ends with it.
        delay_s: how long after its session it begins.
        bytes_per_token: of its body; JSON and code differ.
    """

    __slots__ = ("_prompts", "_turns", "bytes_per_token", "conversation", "delay_s", "leads", "rng", "session")

    def __init__(
        self,
        session: str,
        conversation: str,
        turns: Iterator[Turn],
        *,
        leads: bool,
        rng: random.Random,
        shared_ids: bytes,
        delay_s: float = 0.0,
    ) -> None:
        self.session = session
        self.conversation = conversation
        self.leads = leads
        self.delay_s = delay_s
        self.bytes_per_token = rng.uniform(3.4, 5.0)
        self.rng = rng
        # Block ids, the longest first: only prompts that no later one was as long as.
        self._prompts = [shared_ids]
        self._turns = turns

    def next_turn(self) -> Turn | None:
        """The next request, None when the conversation has ended."""
        return next(self._turns, None)

    def ids_of(self, turn: Turn, page_size_tokens: int) -> bytes:
        """Block ids of a turn's prompt and output; what is kept has the ids that it had."""
        total = (turn.prompt_tokens + turn.output_tokens) // page_size_tokens * BLOCK_ID_BYTES
        kept = min(total, turn.kept_tokens // page_size_tokens * BLOCK_ID_BYTES)
        source = next((ids for ids in reversed(self._prompts) if len(ids) >= kept), self._prompts[0])[:kept]
        ids = source + self.rng.randbytes(total - len(source))
        while self._prompts and len(self._prompts[-1]) <= len(ids):
            self._prompts.pop()
        self._prompts = [*self._prompts, ids][-REMEMBERED_PROMPTS:]
        return ids

    def body_bytes(self, turn: Turn) -> int:
        """Size of a turn's body: what a router sees of its length."""
        return int(turn.prompt_tokens * self.bytes_per_token * self.rng.uniform(0.99, 1.01))


class Session(Protocol):
    """What one client runs: one conversation, or many at once under one id."""

    conversations: list[Conversation]

    def successor(self, ended: Conversation) -> Conversation | None:
        """What follows a conversation that has ended; None when its session has ended with it."""


class Source(Protocol):
    """Where sessions come from."""

    def session(self, *, under_way: bool) -> Session:
        """A new session, or one that is somewhere in its life: how sessions are found at any moment."""


class _Generated:
    """A session: it lasts as long as its first conversation; the others are its helpers, each followed by another."""

    def __init__(self, generator: "Generator", name: str, width: int, *, under_way: bool) -> None:
        self._generator = generator
        self._name = name
        self._made = 0
        self._ended = False
        self.conversations = [self._next(under_way=under_way) for _ in range(width)]

    def successor(self, ended: Conversation) -> Conversation | None:
        """A new helper after a helper, as long as the first conversation goes on."""
        self._ended |= ended.leads
        return None if self._ended else self._next(under_way=False)

    def _next(self, *, under_way: bool) -> Conversation:
        self._made += 1
        leads = self._made == 1
        return self._generator.conversation(self._name, f"c{self._made}", leads=leads, under_way=under_way)


class Generator:
    """Sessions of one kind, without end."""

    def __init__(self, kind: Kind, seed: int, page_size_tokens: int) -> None:
        self._kind = kind
        self._rng = random.Random(f"workload {kind} {seed}")
        self._sessions = 0
        self._shared_ids = shared_prefix_ids(page_size_tokens)

    def session(self, *, under_way: bool) -> Session:
        """A new session, or one that is somewhere in its life."""
        self._sessions += 1
        wide = self._kind is Kind.THICK and self._rng.random() < WIDE_SHARE
        width = self._rng.randint(*WIDEST) if wide else 1
        return _Generated(self, f"s{self._sessions}", width, under_way=under_way)

    def conversation(self, session: str, conversation: str, *, leads: bool, under_way: bool) -> Conversation:
        """A conversation of a session."""
        rng = random.Random(self._rng.getrandbits(64))
        turns = turns_of(self._kind, rng, under_way=under_way)
        return Conversation(session, conversation, turns, leads=leads, rng=rng, shared_ids=self._shared_ids)


def shared_prefix_ids(page_size_tokens: int) -> bytes:
    """Block ids of the prefix that all conversations share."""
    return random.Random("shared prefix").randbytes(SHARED_PREFIX_TOKENS // page_size_tokens * BLOCK_ID_BYTES)


def turns_of(kind: Kind, rng: random.Random, *, under_way: bool) -> Iterator[Turn]:
    """The turns of one conversation, or the rest of one that is under way.

    Whoever looks at a moment finds long sessions more often than short ones, and in the middle.
    """
    requests = REQUESTS.draw(rng)
    skipped = 0
    if under_way:
        requests *= math.exp(REQUESTS.sigma**2)
        skipped = int(rng.random() * min(requests, LONGEST_CONVERSATION_REQUESTS))
    left = max(1, min(int(requests), LONGEST_CONVERSATION_REQUESTS) - skipped)
    limit_tokens = USUAL_CONTEXT_TOKENS if rng.random() < USUAL_CONTEXT_SHARE else MAX_CONTEXT_TOKENS
    context_tokens = _first_tokens(rng, limit_tokens)
    for _ in range(skipped):
        context_tokens, _kept = _next_tokens(rng, context_tokens, limit_tokens)
    return _turns(kind, rng, context_tokens, limit_tokens, left)


def _turns(kind: Kind, rng: random.Random, context_tokens: int, limit_tokens: int, requests: int) -> Iterator[Turn]:
    kept_tokens, until_user = SHARED_PREFIX_TOKENS, 0
    for number in range(requests):
        if not until_user:
            until_user = max(1, int(REQUESTS_PER_USER_TURN.draw(rng)))
        until_user -= 1
        finish, gap_s = _pause(kind, rng, last=number + 1 == requests, user_next=not until_user)
        output_tokens = max(8, int(min(OUTPUT.draw(rng), ROOM_FOR_OUTPUT_TOKENS)))
        yield Turn(context_tokens, kept_tokens, output_tokens, finish, gap_s)
        # As in the corpora, the answer does not count as kept: harnesses send it back without its reasoning.
        context_tokens, kept_tokens = _next_tokens(rng, context_tokens, limit_tokens)
        if rng.random() < (REWRITES_AFTER_USER if finish == "stop" else REWRITES_PER_REQUEST):
            kept_tokens = SHARED_PREFIX_TOKENS


def _pause(kind: Kind, rng: random.Random, *, last: bool, user_next: bool) -> tuple[str, float]:
    """How a turn ends and how long it takes until the next one."""
    if last:
        return "stop", 0.0
    if user_next and kind is Kind.INTERACTIVE:
        return "stop", min(USER_GAP_S.draw(rng), LONGEST_USER_GAP_S)
    return "tool_calls", min(TOOL_GAP_S.draw(rng), LONGEST_TOOL_GAP_S)


def _first_tokens(rng: random.Random, limit_tokens: int) -> int:
    if rng.random() < FRESH_SHARE:
        return int(min(SHARED_PREFIX_TOKENS + FRESH_EXTRA.draw(rng), limit_tokens // 2))
    return int(min(SHARED_PREFIX_TOKENS + RESUMED.draw(rng), 0.9 * limit_tokens))


def _next_tokens(rng: random.Random, context_tokens: int, limit_tokens: int) -> tuple[int, int]:
    """The next prompt and how much of this one it keeps; after a compaction that is the shared prefix alone."""
    grown_tokens = context_tokens + int(min(GROWTH.draw(rng), 40_000))
    compacts = context_tokens > COMPACTION_LEAST_TOKENS and rng.random() < COMPACTIONS_PER_REQUEST
    if not compacts and grown_tokens < limit_tokens - ROOM_FOR_OUTPUT_TOKENS:
        return grown_tokens, context_tokens
    left_tokens = int(context_tokens * rng.uniform(0.15, 0.75))
    return max(SHARED_PREFIX_TOKENS + 2_000, left_tokens), SHARED_PREFIX_TOKENS
