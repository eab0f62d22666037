"""A conversation as a plain dict, for snapshots, for the shared store and for sibling routers; and back, with checks.

What comes back was written by another process, maybe of another version: every field is checked, and the error says
which one was wrong. Not here: what a router does with it (`state`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

from sglpool.routing.types import FINISHES, ConversationKey

VERSION = 1
"""Version of snapshots. One of another version is refused: it costs warm homes, never correctness."""


class RecordError(ValueError):
    """A record or snapshot that cannot be used: where, which field, what was wrong."""


class Holder(NamedTuple):
    """A replica, not the home, that was left with a prefix of the conversation."""

    uid: str
    tokens: int
    seen_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is worth telling of a conversation; fields as in `state.Conversation`."""

    key: ConversationKey
    home: str | None
    last_seen_s: float
    ctx_tokens: int
    ctx_bytes: int
    tokens_per_byte: float
    last_finish: str
    holders: tuple[Holder, ...]


def to_plain(record: Record) -> dict[str, object]:
    """Return a record as JSON can hold it."""
    return {
        "session": record.key.session,
        "conversation": record.key.conversation,
        "home": record.home,
        "last_seen_s": record.last_seen_s,
        "ctx_tokens": record.ctx_tokens,
        "ctx_bytes": record.ctx_bytes,
        "tokens_per_byte": record.tokens_per_byte,
        "last_finish": record.last_finish,
        "holders": [list(holder) for holder in record.holders],
    }


def from_plain(plain: object, where: str) -> Record:
    """Read a record back.

    Args:
        plain: what JSON gave.
        where: what to call it in an error.

    Returns:
        The record.

    Raises:
        RecordError: a field is missing or wrong.
    """
    fields = mapping(plain, where)
    home = fields.get("home")
    holders = fields.get("holders")
    if not isinstance(holders, list):
        raise RecordError(f"{where}: holders is {holders!r}; it must be a list")
    finish = _text(fields, "last_finish", where)
    return Record(
        key=ConversationKey(_text(fields, "session", where), _text(fields, "conversation", where)),
        home=None if home is None else _text(fields, "home", where),
        last_seen_s=number(fields.get("last_seen_s"), f"{where}: last_seen_s"),
        ctx_tokens=int(number(fields.get("ctx_tokens"), f"{where}: ctx_tokens")),
        ctx_bytes=int(number(fields.get("ctx_bytes"), f"{where}: ctx_bytes")),
        tokens_per_byte=number(fields.get("tokens_per_byte"), f"{where}: tokens_per_byte"),
        last_finish=finish if finish in FINISHES else "unknown",
        holders=tuple(_holder(each, f"{where}: holders[{at}]") for at, each in enumerate(holders)),
    )


def mapping(plain: object, where: str) -> Mapping[str, object]:
    """Return an object with named fields, or say that it is none.

    Raises:
        RecordError: it is something else.
    """
    if not isinstance(plain, dict):
        raise RecordError(f"{where}: {type(plain).__name__} instead of an object")
    return plain


def number(plain: object, where: str) -> float:
    """Return a number that is 0 or more.

    Raises:
        RecordError: it is something else.
    """
    if isinstance(plain, bool) or not isinstance(plain, int | float) or not isfinite(plain) or plain < 0:
        raise RecordError(f"{where} is {plain!r}; it must be a number, 0 or more")
    return float(plain)


def _text(fields: Mapping[str, object], name: str, where: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise RecordError(f"{where}: {name} is {value!r}; it must be a string")
    return value


def _holder(plain: object, where: str) -> Holder:
    if not isinstance(plain, list | tuple) or len(plain) != 3 or not isinstance(plain[0], str):
        raise RecordError(f"{where} is {plain!r}; it must be [uid, tokens, seen_s]")
    return Holder(plain[0], int(number(plain[1], f"{where} tokens")), number(plain[2], f"{where} seen_s"))
