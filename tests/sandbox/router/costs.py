"""What a fault costs, as its test counts it: streams that broke, homes that moved, turns that found no cache."""

from __future__ import annotations

from dataclasses import dataclass, field

from support.streaming import Reply, Streams


@dataclass
class Cost:
    """What a fault costs, as its test counts it."""

    name: str
    streams: int = 0
    broken: int = 0
    moved: int = 0
    turns: int = 0
    cold: int = 0
    slowest_s: float = 0.0
    times: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        """One line for people."""
        parts = [
            f"{self.broken} of {self.streams} streams broken",
            f"{self.moved} homes moved",
            f"{self.cold} of {self.turns} turns cold",
            f"slowest turn {self.slowest_s:.2f} s",
            *(f"{what} after {seconds:.1f} s" for what, seconds in self.times.items()),
        ]
        return f"{self.name}: {', '.join(parts)}"

    def count_streams(self, streams: Streams) -> dict[str, str]:
        """Look which streams still flow; returns the broken ones."""
        broken = streams.flowing()
        self.streams += len(streams.all)
        self.broken += len(broken)
        return broken

    def count_turns(self, replies: dict[str, Reply], before: dict[str, str], after: dict[str, str]) -> set[str]:
        """Count conversations whose home is another one, and turns that found less than half of their cache.

        Returns:
            Those that moved.
        """
        assert {reply.status for reply in replies.values()} == {200}, "every conversation is served"
        moved = {session for session, home in before.items() if after.get(session) != home}
        self.moved += len(moved)
        self.turns += len(replies)
        self.slowest_s = max(self.slowest_s, *(reply.took_s for reply in replies.values()))
        self.cold += sum(1 for reply in replies.values() if reply.cached_tokens < reply.prompt_tokens / 2)
        return moved
