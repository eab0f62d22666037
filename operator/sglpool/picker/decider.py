"""The way of one question: ask the store where it has to be asked, pick, have the store told.

Not here: parsing (`authz`), counting (`ledger`), the store itself (`store`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from sglpool.picker.ledger import Entry, Ledger, Picked, Refused
from sglpool.picker.store import Store
from sglpool.routing.types import ConversationKey

Answer = Picked | Refused | None


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
