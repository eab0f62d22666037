"""Clients that keep a pool busy, and what they got.

Not here: single requests and streams (`streaming`).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from support.streaming import ANSWER_S, SESSION, chat, send


@contextmanager
def at_work(agents: Sequence[Callable[[threading.Event], None]]) -> Iterator[None]:
    """Let each work in a thread of its own, until the block is over and they have ended for that."""
    over = threading.Event()
    threads = [threading.Thread(target=agent, args=(over,), daemon=True) for agent in agents]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)


class Agents:
    """Clients that always have a request under way, and count what they got.

    Args:
        address: Where the router answers.
        model: The model to ask.
        max_tokens: Tokens of an answer.
        patience_s: How long they wait for one.
    """

    def __init__(self, address: str, *, model: str, max_tokens: int = 10_000, patience_s: float = ANSWER_S) -> None:
        self._address = address
        self._model = model
        self._max_tokens = max_tokens
        self._patience_s = patience_s
        self.answers: Counter[int | str] = Counter()

    @contextmanager
    def busy(self, count: int) -> Iterator[None]:
        """So many of them, until the block ends and every request is answered."""
        with at_work([partial(self._ask, f"agent-{number}") for number in range(count)]):
            yield

    def _ask(self, session: str, over: threading.Event) -> None:
        body = chat(f"{session} begins", max_tokens=self._max_tokens, ignore_eos=True) | {"model": self._model}
        while not over.is_set():
            try:
                reply = send(self._address, body=body, timeout_s=self._patience_s, **{SESSION: session})
                self.answers[reply.status] += 1
            except OSError as error:
                self.answers[repr(error)] += 1
