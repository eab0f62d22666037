"""Recorded sessions as clients: the requests, prefixes and ends of turns of a corpus of coding-agent sessions.

A file has one session a line, gzipped or not: `{"id": ..., "rows": [[t_s, agent, input_tokens, output_tokens,
reusable_prefix_tokens, api_time_s, think_time_s, has_user_text, "i" or "e"], ...]}`; "i" is a stop for a tool call, "e"
the end of a turn, and agents other than "m" are helpers of the session. Pauses after tools are the generator's, because
recorded ones are rounded to seconds and contain the client's own work; users pause as recorded, up to the generator's
limit. The corpus says what a prompt keeps of the twelve before it in its session: a replayed prompt goes on from the
last one that was so long. What sessions share with each other it cannot say, for its blocks are numbered per session:
tools and system prompt are taken as the generator has them, the same for every user. Not here: where such a file comes
from; the project has none.
"""

import gzip
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from sglpool.lab.workload import (
    LONGEST_TOOL_GAP_S,
    LONGEST_USER_GAP_S,
    MAX_CONTEXT_TOKENS,
    SHARED_PREFIX_TOKENS,
    TOOL_GAP_S,
    Conversation,
    Kind,
    Session,
    Turn,
    shared_prefix_ids,
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request as recorded.

    Attributes:
        prompt_tokens: its prompt.
        kept_tokens: of these, a prefix of an earlier request.
        output_tokens: its answer.
        thought_s: pause before it.
        tools: whether it stopped for a tool call.
        main_before: requests of the session's main conversation before it.
    """

    prompt_tokens: int
    kept_tokens: int
    output_tokens: int
    thought_s: float
    tools: bool
    main_before: int


REQUEST_S = 8.0
"""About what a request and the tools after it take; a helper starts so many times that after the main conversation."""


def read_sessions(path: Path) -> list[list[list[Recorded]]]:
    """Read a corpus: sessions, their conversations (the main one first), their requests.

    A conversation ends where its context would be longer than the longest that the simulated model takes.

    Raises:
        ValueError: names the line that is not a session.
    """
    packed = path.read_bytes()
    text = (gzip.decompress(packed) if path.suffix == ".gz" else packed).decode()
    sessions = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            conversations = _conversations(json.loads(line)["rows"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ValueError(f"{path}, line {number}: not a session with rows of 9 fields ({error!r})") from error
        if conversations:
            sessions.append(conversations)
    if not sessions:
        raise ValueError(f"{path}: no session of at most {MAX_CONTEXT_TOKENS} tokens of context")
    return sessions


def _conversations(rows: Sequence[Sequence[Any]]) -> list[list[Recorded]]:
    found: dict[str, list[Recorded]] = {"m": []}
    for row in rows:
        _, agent, prompt, output, kept, _, thought_s, _, stop = row
        prompt = max(1, int(prompt))
        found.setdefault(agent, []).append(
            Recorded(
                prompt_tokens=prompt,
                kept_tokens=min(int(kept), prompt - 1),
                output_tokens=max(1, int(output)),
                thought_s=float(thought_s),
                tools=stop == "i",
                main_before=len(found["m"]),
            )
        )
    fitting = [list(takewhile(_fits, requests)) for requests in found.values()]
    return [requests for requests in fitting if requests] if fitting[0] else []


def _fits(request: Recorded) -> bool:
    return request.prompt_tokens + request.output_tokens <= MAX_CONTEXT_TOKENS


class _Replayed:
    """A session of the corpus, once: nothing follows its conversations."""

    def __init__(self, conversations: list[Conversation]) -> None:
        self.conversations = conversations

    def successor(self, ended: Conversation) -> Conversation | None:
        """None: the session has what it had."""
        del ended
        return None


class Replay:
    """Sessions drawn from a corpus, without end."""

    def __init__(
        self, sessions: Sequence[Sequence[Sequence[Recorded]]], kind: Kind, seed: int, page_size_tokens: int
    ) -> None:
        self._sessions = sessions
        self._kind = kind
        self._rng = random.Random(f"replay {kind} {seed}")
        self._drawn = 0
        self._shared_ids = shared_prefix_ids(page_size_tokens)
        # Whoever looks at a moment finds long sessions more often.
        self._lengths = [len(session[0]) for session in sessions]

    def session(self, *, under_way: bool) -> Session:
        """A session from its beginning, or from anywhere in it."""
        self._drawn += 1
        weights = self._lengths if under_way else None
        recorded = self._rng.choices(self._sessions, weights)[0]
        # Of a session under way, helpers that began earlier have ended: most are short.
        start = int(self._rng.random() * len(recorded[0])) if under_way else 0
        conversations = [self._conversation(recorded[0], start, leads=True, delay_s=0.0, name="c1")]
        for number, requests in enumerate(recorded[1:], 2):
            wait = requests[0].main_before - start
            if wait >= 0:
                helper = self._conversation(requests, 0, leads=False, delay_s=wait * REQUEST_S, name=f"c{number}")
                conversations.append(helper)
        return _Replayed(conversations)

    def _conversation(
        self, requests: Sequence[Recorded], first: int, *, leads: bool, delay_s: float, name: str
    ) -> Conversation:
        rng = random.Random(self._rng.getrandbits(64))
        turns = self._turns(requests, first, leads=leads, rng=rng)
        session = f"s{self._drawn}"
        return Conversation(session, name, turns, leads=leads, rng=rng, shared_ids=self._shared_ids, delay_s=delay_s)

    def _turns(self, requests: Sequence[Recorded], first: int, *, leads: bool, rng: random.Random) -> Iterator[Turn]:
        # What was kept of prompts before the first one that is replayed was never computed here.
        longest_tokens = SHARED_PREFIX_TOKENS
        for number in range(first, len(requests)):
            each = requests[number]
            following = requests[number + 1] if number + 1 < len(requests) else None
            kept_tokens = each.kept_tokens
            if number == first and leads:
                kept_tokens = min(SHARED_PREFIX_TOKENS, each.prompt_tokens - 1)
            finish = "tool_calls" if each.tools and following is not None else "stop"
            kept_tokens = min(kept_tokens, longest_tokens)
            longest_tokens = max(longest_tokens, each.prompt_tokens + each.output_tokens)
            yield Turn(each.prompt_tokens, kept_tokens, each.output_tokens, finish, self._gap_s(each, following, rng))

    def _gap_s(self, each: Recorded, following: Recorded | None, rng: random.Random) -> float:
        if following is None:
            return 0.0
        if each.tools or self._kind is not Kind.INTERACTIVE:
            return min(TOOL_GAP_S.draw(rng), LONGEST_TOOL_GAP_S)
        return min(following.thought_s, LONGEST_USER_GAP_S)
