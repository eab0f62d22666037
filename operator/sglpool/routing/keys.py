"""Which conversation a request belongs to, from headers alone: each harness has its own names for it.

Envoy makes the key of a request without any such header from the first user message and hands it over in the two
headers of `pickerconfig`; those are asked first. Values are hashed: they are of any length and somebody else's, and the
key goes into memory, snapshots, stores and logs. Not here: the fingerprint itself (Lua in `render.envoy`).
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from sglpool.routing.pickerconfig import HEADER_KEY_CONVERSATION, HEADER_KEY_SESSION
from sglpool.routing.types import ConversationKey

KEY_HEADERS: tuple[tuple[str, str | None], ...] = (
    # Ours, for clients of one's own: an agent's id and, if it talks in several conversations at once, which one.
    ("x-sglpool-session", "x-sglpool-conversation"),
    # Claude Code: sub-agents share the session and have an agent id each; the main agent has none.
    ("x-claude-code-session-id", "x-claude-code-agent-id"),
    # Codex: threads of sub-agents share the session.
    ("session-id", "thread-id"),
    # OpenCode: sub-agents are sessions of their own.
    ("x-session-id", None),
    # Clients of Modal's endpoints.
    ("modal-session-id", None),
)
"""Header of the session and header of the conversation in it, by harness. The first session header present decides."""

_ASKED = ((HEADER_KEY_SESSION, HEADER_KEY_CONVERSATION), *KEY_HEADERS)
"""As in a question of Envoy's: what its script made of them comes first."""

FORWARDED_HEADERS: tuple[str, ...] = tuple(name for pair in KEY_HEADERS for name in pair if name is not None)
"""Every header above, for whoever must let them through."""

HASH_BYTES = 8
"""64 bits each for session and conversation."""


def key_of(headers: Mapping[str, str]) -> ConversationKey | None:
    """Return a request's key.

    Args:
        headers: by lower-case name.

    Returns:
        The key, None if no header says anything. A session without a conversation id is one conversation.
    """
    for session_header, conversation_header in _ASKED:
        session = headers.get(session_header, "").strip()
        if session:
            conversation = headers.get(conversation_header, "").strip() if conversation_header else ""
            return ConversationKey(_short(session), _short(conversation) if conversation else "")
    return None


def fallback_key(key: ConversationKey | None, request_id: str) -> str:
    """Return what rendezvous hashes: the conversation, so that a session of many spreads; else the request itself."""
    return request_id if key is None else f"{key.session}/{key.conversation}"


def _short(value: str) -> str:
    return blake2b(value.encode("utf-8", "surrogateescape"), digest_size=HASH_BYTES).hexdigest()
