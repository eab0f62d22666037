"""What a fault costs, as its test counts it: streams that broke, homes that were lost, turns that found no cache."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from support.streaming import Reply, Streams


@dataclass(frozen=True)
class Turns:
    """One turn of every conversation, by session.

    Attributes:
        replies: What the client got.
        rules: The rule by which the picker placed it; empty where it was away when the turns began.
    """

    replies: dict[str, Reply]
    rules: dict[str, str]

    def cold(self) -> set[str]:
        """Sessions that found less than half of their prompt cached."""
        return {name for name, reply in self.replies.items() if reply.cached_tokens < reply.prompt_tokens / 2}


@dataclass
class Cost:
    """What a fault costs, as its test counts it."""

    name: str
    streams: int = 0
    broken: int = 0
    moved: int = 0
    lost: int = 0
    turns: int = 0
    cold: int = 0
    slowest_s: float = 0.0
    times: dict[str, float] = field(default_factory=dict)
    rules: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        """One line for people."""
        parts = [
            f"{self.broken} of {self.streams} streams broken",
            f"{self.moved} homes moved, {self.lost} of them to where nothing was cached",
            f"{self.cold} of {self.turns} turns cold",
            f"slowest turn {self.slowest_s:.2f} s",
            *(f"{what} after {seconds:.1f} s" for what, seconds in self.times.items()),
        ]
        rules = ", ".join(f"{count} {rule}" for rule, count in self.rules.most_common())
        return f"{self.name}: {', '.join(parts)}{f' (turns placed by: {rules})' if rules else ''}"

    def count_streams(self, streams: Streams) -> dict[str, str]:
        """Look which streams still flow; returns the broken ones."""
        broken = streams.flowing()
        self.streams += len(streams.all)
        self.broken += len(broken)
        return broken

    def count_turns(self, turns: Turns, before: dict[str, str], after: dict[str, str]) -> set[str]:
        """Count conversations whose home is another one, and turns that found less than half of their cache.

        Who moved to where the conversation was cached as well, from an earlier turn, has lost nothing.

        Returns:
            Those that lost their home.
        """
        statuses = {session: reply.status for session, reply in turns.replies.items()}
        assert set(statuses.values()) == {200}, f"every conversation is served: {statuses}"
        cold = turns.cold()
        moved = {session for session, home in before.items() if after.get(session) != home}
        lost = moved & cold
        self.moved += len(moved)
        self.lost += len(lost)
        self.turns += len(turns.replies)
        self.slowest_s = max(self.slowest_s, *(reply.took_s for reply in turns.replies.values()))
        self.cold += len(cold)
        self.rules.update(turns.rules.values())
        return lost
