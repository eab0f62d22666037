"""What the demo's agents send: conversations as JSON that grow turn by turn, in text that no two of them share.

A conversation's body is kept in pieces that are encoded once, so that a long context costs a copy a turn and no more.
Not here: how long a turn is and when it comes (`lab.workload`, `traffic`).
"""

from __future__ import annotations

import json
import random

TOKEN_BYTES = 4
"""As the simulated engines count."""
SHARED_SEED = "tools and instructions"
_TEXT_BYTES = 1 << 20
_WORD = 8


class Text:
    """Words to cut from; two cuts begin alike only if they are the same cut.

    Args:
        seed: Of the words.
    """

    def __init__(self, seed: str) -> None:
        rng = random.Random(seed)
        # Hexadecimal words: nothing that JSON would escape.
        self._text = " ".join(rng.randbytes(_WORD // 2).hex() for _ in range(_TEXT_BYTES // (_WORD + 1)))

    def cut(self, rng: random.Random, length: int) -> str:
        """A stretch from somewhere."""
        parts = []
        while length > 0:
            at = rng.randrange(len(self._text))
            parts.append(self._text[at : at + length])
            length -= len(parts[-1])
        return "".join(parts)


class Body:
    """The body of one conversation's requests.

    Args:
        model: What the pool serves.
        text: Where its words are from.
        rng: Which ones.
        shared_tokens: Length of the beginning that all conversations share.
    """

    def __init__(self, model: str, text: Text, rng: random.Random, *, shared_tokens: int) -> None:
        self._model = json.dumps(model)
        self._text = text
        self._rng = rng
        self._shared = _message("system", text.cut(random.Random(SHARED_SEED), shared_tokens * TOKEN_BYTES))
        self._pieces = [self._shared]
        self.tokens = len(self._shared) // TOKEN_BYTES

    def grow(self, tokens: int, *, keep: bool) -> None:
        """Make the conversation so long: on top of what it was, or anew after its shared beginning.

        Args:
            tokens: Wanted length; at least one short message is added.
            keep: Whether what is there stays as it is.
        """
        if not keep:
            del self._pieces[1:]
            self.tokens = len(self._shared) // TOKEN_BYTES
        if len(self._pieces) > 1:
            self._add("assistant", 16)
        self._add("user", max(16, tokens - self.tokens))

    def request(self, max_tokens: int) -> bytes:
        """A streaming request for so many tokens, no fewer."""
        options = '"stream":true,"stream_options":{"include_usage":true},"ignore_eos":true'
        head = f'{{"model":{self._model},"max_tokens":{max_tokens},{options},"messages":['
        return b"".join((head.encode(), b",".join(self._pieces), b"]}"))

    def _add(self, role: str, tokens: int) -> None:
        self._pieces.append(_message(role, self._text.cut(self._rng, tokens * TOKEN_BYTES)))
        self.tokens += tokens


def _message(role: str, content: str) -> bytes:
    return f'{{"role":"{role}","content":"{content}"}}'.encode()
