"""The routers' shared memory of homes: what each router writes after a request and reads before one.

As with the real store, a router learns about a conversation only when one of its requests comes by.
Not here: what routers tell each other about load (`router`).
"""

from dataclasses import dataclass

from sglpool.routing.state import Conversation, Holder, RoutingState
from sglpool.routing.types import ConversationKey


@dataclass(frozen=True, slots=True)
class _Record:
    writer: int
    home: str | None
    ctx_tokens: int
    ctx_bytes: int
    tokens_per_byte: float
    last_seen_s: float
    last_finish: str
    holders: tuple[Holder, ...]


class Store:
    """Homes by conversation."""

    def __init__(self) -> None:
        self._records: dict[ConversationKey, _Record] = {}

    def write(self, conversation: Conversation, writer: int) -> None:
        """Take in what a router, known by a number, knows of a conversation."""
        self._records[conversation.key] = _Record(
            writer,
            conversation.home,
            conversation.ctx_tokens,
            conversation.ctx_bytes,
            conversation.tokens_per_byte,
            conversation.last_seen_s,
            conversation.last_finish,
            conversation.holders,
        )

    def read(self, key: ConversationKey, state: RoutingState) -> int | None:
        """Bring a router's memory of a conversation up to date.

        Returns:
            The router that wrote it last, None if nobody did.
        """
        record = self._records.get(key)
        if record is None:
            return None
        known = state.get(key)
        if known is not None and known.last_seen_s >= record.last_seen_s:
            return record.writer
        conversation = state.touch(key, record.last_seen_s)
        state.clear_pending(conversation)
        state.set_home(conversation, record.home)
        conversation.ctx_tokens = record.ctx_tokens
        conversation.ctx_bytes = record.ctx_bytes
        conversation.tokens_per_byte = record.tokens_per_byte
        conversation.last_finish = record.last_finish
        conversation.holders = record.holders
        return record.writer

    def forget(self, key: ConversationKey) -> None:
        """Drop a conversation that has ended, so that a long simulation stays small."""
        self._records.pop(key, None)
