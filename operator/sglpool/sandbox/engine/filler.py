"""What the simulated engine answers: words that say they are simulated, and arguments for a tool.

A reply is a stream of tokens of four bytes each. Its length is asked for, or drawn from the prompt with the
spread of real coding agents. The same prompt gets the same reply. Not here: when which token comes.
"""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

TOKEN_BYTES = 4
END = b"<|.>"
"""End of a message, one token; the reply's last token when it ends by itself."""
END_TOKEN = int.from_bytes(END, "little")
TOOL_OPEN = b"<call "
TOOL_NAMED = b">"
TOOL_CLOSE = b"</c>"

_OPENING = "This text is simulated: no model has written it. "
_WORDS = (
    "the build passes and each test now reads its own file so that a change in one place stays in that place "
    "next we look at what the caller expects and keep the old name until nothing uses it any more then the "
    "limit moves into the settings with a default that suits most of them and a sentence that says why "
)
_PERIOD_BYTES = 4096 * TOKEN_BYTES


# ASCII without a character that JSON would escape; a whole number of tokens.
_TEXT = (_OPENING + _WORDS * (_PERIOD_BYTES // len(_WORDS) + 1))[:_PERIOD_BYTES].encode()


def _words(start: int, end: int) -> bytes:
    """A stretch of the endless text."""
    if end <= start:
        return b""
    at, length = start % _PERIOD_BYTES, end - start
    if at + length <= _PERIOD_BYTES:
        return _TEXT[at : at + length]
    return (_TEXT * ((at + length) // _PERIOD_BYTES + 1))[at : at + length]


# Output tokens of real coding-agent requests: share of the requests below, tokens.
_LENGTHS = ((0.0, 40), (0.05, 89), (0.25, 137), (0.5, 216), (0.75, 426), (0.9, 898), (0.99, 3700), (1.0, 8000))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A reply as it will be generated: bytes, TOKEN_BYTES per token, of which the words are not kept but known.

    Attributes:
        before: what comes before the words: a tool's name and the beginning of its arguments.
        words_bytes: length of the words.
        after: what comes after them, end marks with it.
        total_bytes: length of the whole; less than all of the above when a limit cuts it off.
        text_at: where the text that the client sees begins: words, or the arguments of a tool.
        text_to: where it ends.
        stops: whether it ends by itself; else the limit cuts it off.
        tool: name of the tool that it calls, or empty.
    """

    before: bytes = b""
    words_bytes: int
    after: bytes = b""
    total_bytes: int
    text_at: int = 0
    text_to: int
    stops: bool
    tool: str = ""

    @property
    def tokens(self) -> int:
        """Tokens of the whole reply."""
        return self.total_bytes // TOKEN_BYTES

    def stream(self) -> bytes:
        """All of its bytes, marks with them."""
        return self._cut(0, self.total_bytes)

    def text(self, from_token: int, to_token: int) -> bytes:
        """The client's share of some of its tokens."""
        return self._cut(max(from_token * TOKEN_BYTES, self.text_at), min(to_token * TOKEN_BYTES, self.text_to))

    def _cut(self, start: int, end: int) -> bytes:
        words_at = len(self.before)
        words_to = words_at + self.words_bytes
        if words_at <= start and end <= words_to:
            return _words(start - words_at, end - words_at)
        words = _words(max(start - words_at, 0), min(end, words_to) - words_at)
        return self.before[start:end] + words + self.after[max(start - words_to, 0) : max(end - words_to, 0)]


def natural_tokens(prompt: bytes) -> int:
    """The length of a reply that nobody limits: half of them are below 216 tokens, one in a hundred above 3700."""
    digest = hashlib.blake2b(prompt[-4096:], digest_size=8, salt=len(prompt).to_bytes(8, "little")).digest()
    share = int.from_bytes(digest, "little") / 2**64
    at = min(bisect_right(_LENGTHS, share, key=lambda row: row[0]), len(_LENGTHS) - 1)
    (share_0, tokens_0), (share_1, tokens_1) = _LENGTHS[at - 1], _LENGTHS[at]
    part = (share - share_0) / (share_1 - share_0)
    return round(math.exp(math.log(tokens_0) + part * (math.log(tokens_1) - math.log(tokens_0))))


def words(tokens: int, *, limit_tokens: int) -> Reply:
    """A reply of words; it stops by itself when it would end before the limit."""
    stops = tokens < limit_tokens
    tokens = min(tokens, limit_tokens)
    text_bytes = (tokens - stops) * TOKEN_BYTES
    after = END if stops else b""
    return Reply(words_bytes=text_bytes, after=after, total_bytes=tokens * TOKEN_BYTES, text_to=text_bytes, stops=stops)


def tool_call(name: str, schema: object, tokens: int, *, limit_tokens: int) -> Reply:
    """A reply that calls a tool, with arguments of the right types; at least as long as those need."""
    head = TOOL_OPEN + name.encode() + TOOL_NAMED
    tail = TOOL_CLOSE + END
    before, after = _arguments(schema)
    fixed_bytes = len(head) + len(before) + len(after) + len(tail)
    fill_bytes = max(tokens * TOKEN_BYTES - fixed_bytes, len(_OPENING))
    fill_bytes += -(fixed_bytes + fill_bytes) % TOKEN_BYTES
    total_bytes, limit_bytes = fixed_bytes + fill_bytes, limit_tokens * TOKEN_BYTES
    if limit_bytes <= len(head):
        return words(limit_tokens, limit_tokens=limit_tokens)
    return Reply(
        before=head + before,
        words_bytes=fill_bytes,
        after=after + tail,
        total_bytes=min(total_bytes, limit_bytes),
        text_at=len(head),
        text_to=min(total_bytes - len(tail), limit_bytes),
        stops=total_bytes <= limit_bytes,
        tool=name,
    )


def _arguments(schema: object) -> tuple[bytes, bytes]:
    """JSON of the required arguments, in two parts around the place for words."""
    value: dict[str, Any] = {}
    place = ""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    required = schema.get("required") if isinstance(schema, dict) else None
    for name in required if isinstance(required, list) else []:
        about = properties.get(name) if isinstance(properties, dict) else None
        value[str(name)] = _example(about if isinstance(about, dict) else {})
        if value[str(name)] == "" and not place:
            place = str(name)
    place = place or "simulated"
    value[place] = "\0"
    before, _, after = canonical(value).partition(b"\\u0000")
    return before, after


def _example(schema: dict[str, Any]) -> object:
    """A value that suits a JSON schema, roughly; empty text for text."""
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        return choices[0]
    examples: dict[object, object] = {
        "integer": 1,
        "number": 1,
        "boolean": True,
        "array": [],
        "object": {},
        "null": None,
    }
    kind = schema.get("type")
    return examples.get(kind if isinstance(kind, str) else "", "")


def canonical(value: object) -> bytes:
    """The one JSON text of a value, ASCII, keys in their order: clients may write it with other blanks."""
    return json.dumps(value, separators=(",", ":")).encode()
