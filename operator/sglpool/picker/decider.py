"""The way of one question: ask the store where it has to be asked, pick, have the store told.

Not here: parsing (`authz`), counting (`ledger`), the store itself (`store`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Protocol

from sglpool.picker.ledger import Entry, Ledger, Picked, Refused
from sglpool.routing.types import ConversationKey

Answer = Picked | Refused | None


class Store(Protocol):
    """What the picker wants of a shared memory."""

    @property
    def available(self) -> bool:
        """Whether it answers."""
        ...

    async def fetch(self, key: ConversationKey) -> None:
        """Bring what it knows of a conversation into the ledger's state; never fails, never takes long."""
        ...

    def note(self, key: ConversationKey, seen_home: str | None) -> None:
        """Have a conversation written soon.

        Args:
            key: the conversation.
            seen_home: the home that the decision was based on: if the store has another, that one wins.
        """
        ...


class StoredDecider:
    """Picks with or without a shared store."""

    def __init__(self, ledger: Ledger, store: Store | None) -> None:
        """Decide by `ledger`; `store` is None where each router remembers for itself."""
        self._ledger = ledger
        self._store = store

    def decide(self, key: ConversationKey | None, headers: Mapping[str, str]) -> Answer | Awaitable[Answer]:
        """Where a request goes."""
        if key is None or self._store is None or not self._store.available:
            return self._ledger.pick(key, headers)
        return self._after_reading(self._store, key, headers)

    async def _after_reading(self, store: Store, key: ConversationKey, headers: Mapping[str, str]) -> Answer:
        await store.fetch(key)
        answer = self._ledger.pick(key, headers)
        if isinstance(answer, Picked):
            conversation = self._ledger.state.get(key)
            if conversation is not None and conversation.home != answer.old_home:
                store.note(key, answer.old_home)
        return answer

    def ended(self, entry: Entry) -> None:
        """A request ended: what its conversation has learned is worth telling."""
        key = self._ledger.ended(entry)
        if key is None or self._store is None:
            return
        conversation = self._ledger.state.get(key)
        if conversation is not None:
            self._store.note(key, conversation.home)
