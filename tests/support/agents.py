"""Clients that keep a pool busy, and what they got.

Not here: single requests and streams (`streaming`).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from support.streaming import SESSION, chat, send


class Agents:
    """Clients that always have a request under way, and count what they got.

    Args:
        address: Where the router answers.
        model: The model to ask.
        max_tokens: Tokens of an answer.
    """

    def __init__(self, address: str, *, model: str, max_tokens: int = 10_000) -> None:
        self._address = address
        self._model = model
        self._max_tokens = max_tokens
        self.answers: Counter[int | str] = Counter()

    @contextmanager
    def busy(self, count: int) -> Iterator[None]:
        """So many of them, until the block ends and every request is answered."""
        over = threading.Event()
        threads = [threading.Thread(target=self._ask, args=(f"agent-{n}", over), daemon=True) for n in range(count)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join(60)
            assert not any(thread.is_alive() for thread in threads)

    def _ask(self, session: str, over: threading.Event) -> None:
        body = chat(f"{session} begins", max_tokens=self._max_tokens, ignore_eos=True) | {"model": self._model}
        while not over.is_set():
            try:
                self.answers[send(self._address, body=body, **{SESSION: session}).status] += 1
            except OSError as error:
                self.answers[repr(error)] += 1
