"""Pick ids: what the picker gives Envoy with a pick, and what comes back in the access log.

An id carries its conversation and body length, so that a picker that has just started still learns from requests that
the one before it had placed. All parts are the picker's own hex and digits: nothing in it was chosen by a client.
"""

from __future__ import annotations

from sglpool.routing.types import ConversationKey

_PARTS = 4
_HEX = frozenset("0123456789abcdef")


def make(series: str, count: int, key: ConversationKey | None, body_bytes: int) -> str:
    """An id that no other pick has.

    Args:
        series: hex that is this process's own.
        count: number of the pick in it.
        key: the conversation.
        body_bytes: length of the request.
    """
    session, conversation = key if key is not None else ("", "")
    return f"{series}{count:x}.{session}.{conversation}.{body_bytes}"


def parse(pick_id: str) -> tuple[ConversationKey | None, int]:
    """Conversation and body length of an id.

    Raises:
        ValueError: it is no id of ours.
    """
    parts = pick_id.split(".")
    if len(parts) != _PARTS or not parts[3].isdecimal() or not all(_HEX.issuperset(part) for part in parts[:3]):
        raise ValueError(f"{pick_id[:80]!r} is no pick id")
    key = ConversationKey(parts[1], parts[2]) if parts[1] else None
    return key, int(parts[3])
