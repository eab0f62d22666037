"""What a router remembers: conversations with their homes, and what it has learned about bytes, tokens and caches.

Bounded in number and age, the oldest out. Counts that every pick needs (conversations homed on a replica, those about
to come back, requests of a session in flight) are kept along, so that no pick looks at all conversations.
Not here: decisions (`rules`), the Replica objects, which are the caller's, and the form of snapshots (`records`).
"""

from __future__ import annotations

from collections import OrderedDict

from sglpool.routing import records
from sglpool.routing.records import Holder, Record, RecordError
from sglpool.routing.types import DEFAULT_CONFIG, FINISH_TOOL_CALLS, ConversationKey, PolicyConfig

__all__ = ["Conversation", "Holder", "RecordError", "RoutingState", "Tally"]

MIXED_PICKS = 8
"""Requests, one at a time, after which a key that once ran several at once counts as one conversation again."""


class Conversation:
    """One conversation.

    Attributes:
        key: who it is.
        home: uid of the replica that holds its KV, None while nobody does.
        ctx_tokens: tokens that the home is believed to hold of it.
        ctx_bytes: length of the last request at home, which those tokens go with.
        tokens_per_byte: of its own bodies, 0 before the first usage.
        last_seen_s: the last pick or release.
        idle_s: the pause that the last pick ended.
        last_finish: finish reason of the last response.
        running: requests in flight by replica, None when there is none.
        holders: other replicas with a prefix of it, most recent first.
        earlier: what the home holds of a longer prompt that came before a much shorter one, None if there was none. It
            is this router's alone: whoever does not know it computes a little more.
        mixed: above 0 while the key stands for several conversations at once, whose lengths say nothing.
    """

    __slots__ = (
        "ctx_bytes",
        "ctx_tokens",
        "earlier",
        "holders",
        "home",
        "idle_s",
        "key",
        "last_finish",
        "last_seen_s",
        "mixed",
        "running",
        "tokens_per_byte",
    )

    def __init__(self, key: ConversationKey, now_s: float) -> None:
        self.key = key
        self.home: str | None = None
        self.ctx_tokens = 0
        self.ctx_bytes = 0
        self.tokens_per_byte = 0.0
        self.last_seen_s = now_s
        self.idle_s = 0.0
        self.last_finish = "unknown"
        self.running: dict[str, int] | None = None
        self.holders: tuple[Holder, ...] = ()
        self.earlier: Holder | None = None
        self.mixed = 0

    @property
    def in_flight(self) -> int:
        """Requests in flight, on all replicas."""
        return sum(self.running.values()) if self.running else 0

    def running_on(self, uid: str | None) -> int:
        """Requests in flight on one replica."""
        return self.running.get(uid, 0) if self.running and uid is not None else 0

    def add_holder(self, holder: Holder, limit: int) -> None:
        """Put a holder first, drop an older entry of that replica and what is beyond the limit."""
        if holder.tokens > 0 and limit > 0:
            others = [each for each in self.holders if each.uid != holder.uid]
            self.holders = (holder, *others[: limit - 1])

    def forget_holder(self, uid: str) -> None:
        """Drop a replica from the holders."""
        if self.holders:
            self.holders = tuple(each for each in self.holders if each.uid != uid)


class Tally:
    """Conversations of one replica: how many live there, and how many of them are about to come back (I_r)."""

    __slots__ = ("homed", "pending")

    def __init__(self) -> None:
        self.homed = 0
        self.pending = 0


class RoutingState:
    """All that one router remembers.

    Attributes:
        config: its limits of age and number.
        conversations: by key, the longest unseen first.
        tallies: per replica uid.
        sessions: requests in flight by session, then by replica uid; sessions with none are not in it.
        pending: conversations that wait for their tools, by key, since when, the longest first.
        tokens_per_byte: of the whole pool, for conversations that have no figure of their own.
        shared_tokens: what replicas have cached of conversations that are new to them: tools and system prompt.
        mean_prompt_tokens: of the whole pool: where in a prompt its prefill rates are measured.
        residency_s: per replica uid, the pause after which KV was found evicted. A replica without misses is not in it.
        misses_s: per replica uid, pauses that ended in a miss, while they are too few to conclude from.
        spill_tokens: what is in the bucket that pays for spills.
        store_available: False while a shared store is away: then homes are neither learned nor changed.
    """

    def __init__(self, config: PolicyConfig = DEFAULT_CONFIG) -> None:
        self.config = config
        self.conversations: OrderedDict[ConversationKey, Conversation] = OrderedDict()
        self.tallies: dict[str, Tally] = {}
        self.sessions: dict[str, dict[str, int]] = {}
        self.pending: OrderedDict[ConversationKey, float] = OrderedDict()
        self.tokens_per_byte = config.tokens_per_byte
        self.shared_tokens = 0.0
        self.mean_prompt_tokens = config.prefill_prompt_tokens
        self.residency_s: dict[str, float] = {}
        self.misses_s: dict[str, tuple[float, ...]] = {}
        self.spill_tokens = config.spill_burst
        self.store_available = True

    def homed(self, uid: str) -> int:
        """Return how many conversations live on a replica."""
        tally = self.tallies.get(uid)
        return tally.homed if tally else 0

    def pending_on(self, uid: str) -> int:
        """Return how many conversations of a replica are about to come back (I_r), as of the last `expire`."""
        tally = self.tallies.get(uid)
        return tally.pending if tally else 0

    def get(self, key: ConversationKey) -> Conversation | None:
        """Return a conversation without touching its age."""
        return self.conversations.get(key)

    def touch(self, key: ConversationKey, now_s: float) -> Conversation:
        """Return a conversation, new if need be, as the one seen last; the oldest goes if there are too many."""
        conversation = self.conversations.get(key)
        if conversation is None:
            conversation = self.conversations[key] = Conversation(key, now_s)
            while len(self.conversations) > self.config.max_conversations:
                self.drop(next(iter(self.conversations)))
        else:
            self.conversations.move_to_end(key)
            conversation.last_seen_s = max(conversation.last_seen_s, now_s)
        return conversation

    def drop(self, key: ConversationKey) -> None:
        """Forget a conversation. What it has in flight is still counted on its replicas until it ends."""
        conversation = self.conversations.pop(key, None)
        if conversation is not None:
            self.set_home(conversation, None)

    def set_home(self, conversation: Conversation, uid: str | None) -> None:
        """Change where a conversation lives, and the tallies with it. What it left behind is `holders`' matter."""
        if conversation.home == uid:
            return
        self.clear_pending(conversation)
        if conversation.home is not None:
            self._leave(conversation.home)
        conversation.home = uid
        conversation.earlier = None
        if uid is not None:
            self._tally(uid).homed += 1
            conversation.forget_holder(uid)

    def _tally(self, uid: str) -> Tally:
        tally = self.tallies.get(uid)
        if tally is None:
            tally = self.tallies[uid] = Tally()
        return tally

    def _leave(self, uid: str) -> None:
        tally = self.tallies[uid]
        tally.homed -= 1
        if tally.homed == 0:
            del self.tallies[uid]

    def set_pending(self, conversation: Conversation, since_s: float) -> None:
        """Count a conversation among those that are about to come back to their home."""
        self.clear_pending(conversation)
        if conversation.home is not None:
            self.pending[conversation.key] = since_s
            self.tallies[conversation.home].pending += 1

    def clear_pending(self, conversation: Conversation) -> None:
        """Count it no longer: it came back, moved, or is gone."""
        if self.pending.pop(conversation.key, None) is not None and conversation.home is not None:
            self.tallies[conversation.home].pending -= 1

    def came_back_elsewhere(self, key: ConversationKey, at_s: float) -> None:
        """Count a conversation no longer among those about to come back: another router has had it since `at_s`."""
        since_s = self.pending.get(key)
        # If it has been here again since then, that news is old.
        if since_s is not None and since_s <= at_s:
            self.clear_pending(self.conversations[key])

    def expire(self, now_s: float) -> None:
        """Forget what is too old: pauses of tools that did not end, conversations beyond their TTL."""
        while self.pending:
            key, since_s = next(iter(self.pending.items()))
            if now_s - since_s < self.config.idle_pending_s:
                break
            self.clear_pending(self.conversations[key])
        while self.conversations:
            key = next(iter(self.conversations))
            if now_s - self.conversations[key].last_seen_s < self.config.ttl_s:
                break
            self.drop(key)

    def start(self, key: ConversationKey, conversation: Conversation | None, uid: str) -> None:
        """Count a request of a conversation as in flight on a replica."""
        if conversation is not None:
            if conversation.running is None:
                conversation.running = {}
            else:
                conversation.mixed = MIXED_PICKS
            conversation.running[uid] = conversation.running.get(uid, 0) + 1
        session = self.sessions.setdefault(key.session, {})
        session[uid] = session.get(uid, 0) + 1

    def end(self, key: ConversationKey, uid: str) -> Conversation | None:
        """Count it as ended. Return the conversation if it is still remembered and had that request in flight."""
        session = self.sessions.get(key.session)
        if session is not None and _count_down(session, uid) and not session:
            del self.sessions[key.session]
        conversation = self.conversations.get(key)
        if conversation is None or conversation.running is None or not _count_down(conversation.running, uid):
            return None
        if not conversation.running:
            conversation.running = None
        return conversation

    def forget_replicas(self, live: set[str]) -> None:
        """Drop what was learned about replicas that are gone. Homes on them stay: their next request fails over."""
        self.residency_s = {uid: each for uid, each in self.residency_s.items() if uid in live}
        self.misses_s = {uid: each for uid, each in self.misses_s.items() if uid in live}

    def homes_seen_since(self, since_s: float) -> set[str]:
        """Return the homes of conversations seen since then. A replica is idle only if it is not among them."""
        homes: set[str] = set()
        for conversation in reversed(self.conversations.values()):
            if conversation.last_seen_s < since_s:
                break
            if conversation.home is not None:
                homes.add(conversation.home)
        return homes

    def record(self, key: ConversationKey) -> dict[str, object] | None:
        """Return a conversation as a plain dict, None if it is not remembered."""
        conversation = self.conversations.get(key)
        return None if conversation is None else records.to_plain(_record(conversation))

    def absorb(self, plain: object, now_s: float, where: str = "record") -> bool:
        """Take over what another router knows of a conversation, if that is newer.

        Args:
            plain: a dict as `record` makes it.
            now_s: the time.
            where: what to call it in an error.

        Returns:
            Whether anything was taken over.

        Raises:
            RecordError: a field is missing or wrong; nothing has changed.
        """
        return self._take(records.from_plain(plain, where), now_s)

    def export(self) -> dict[str, object]:
        """Return everything worth keeping as plain dicts and lists, the oldest conversation first."""
        return {
            "version": records.VERSION,
            "tokens_per_byte": self.tokens_per_byte,
            "residency_s": dict(self.residency_s),
            "conversations": [records.to_plain(_record(each)) for each in self.conversations.values()],
        }

    def load(self, snapshot: object, now_s: float) -> int:
        """Take over a snapshot: this router's own at a restart, or a sibling's. What is known already and newer stays.

        Args:
            snapshot: what `export` returned, in this process or another.
            now_s: the time; conversations beyond their TTL are left out.

        Returns:
            How many conversations were taken over.

        Raises:
            RecordError: it is no snapshot, or one of another version; nothing has changed.
        """
        fields = records.mapping(snapshot, "snapshot")
        if fields.get("version") != records.VERSION:
            raise RecordError(f"snapshot: version is {fields.get('version')!r}; this router reads {records.VERSION}")
        ratio = records.number(fields.get("tokens_per_byte"), "snapshot: tokens_per_byte")
        residency = records.mapping(fields.get("residency_s"), "snapshot: residency_s")
        kept_s = {uid: records.number(each, f"snapshot: residency_s.{uid}") for uid, each in residency.items()}
        rows = fields.get("conversations")
        if not isinstance(rows, list):
            raise RecordError(f"snapshot: conversations is {type(rows).__name__}; it must be a list")
        parsed = [records.from_plain(row, f"snapshot: conversations[{at}]") for at, row in enumerate(rows)]
        self.tokens_per_byte = ratio or self.tokens_per_byte
        self.residency_s = kept_s | self.residency_s
        taken = sum(self._take(each, now_s) for each in parsed if now_s - each.last_seen_s < self.config.ttl_s)
        self._sort_by_age()
        return taken

    def _take(self, record: Record, now_s: float) -> bool:
        known = self.conversations.get(record.key)
        if known is not None and known.last_seen_s >= record.last_seen_s:
            return False
        seen_s = min(record.last_seen_s, now_s)
        conversation = self.touch(record.key, seen_s)
        self.set_home(conversation, record.home)
        conversation.ctx_tokens, conversation.ctx_bytes = record.ctx_tokens, record.ctx_bytes
        conversation.tokens_per_byte = record.tokens_per_byte
        conversation.last_finish = record.last_finish
        conversation.holders = record.holders[: self.config.max_holders]
        self.clear_pending(conversation)
        if record.last_finish == FINISH_TOOL_CALLS and now_s - seen_s < self.config.idle_pending_s:
            self.set_pending(conversation, seen_s)
        return True

    def _sort_by_age(self) -> None:
        ordered = sorted(self.conversations.values(), key=lambda conversation: conversation.last_seen_s)
        self.conversations = OrderedDict((each.key, each) for each in ordered)
        self.pending = OrderedDict(sorted(self.pending.items(), key=lambda item: item[1]))


def _record(conversation: Conversation) -> Record:
    return Record(
        key=conversation.key,
        home=conversation.home,
        last_seen_s=conversation.last_seen_s,
        ctx_tokens=conversation.ctx_tokens,
        ctx_bytes=conversation.ctx_bytes,
        tokens_per_byte=conversation.tokens_per_byte,
        last_finish=conversation.last_finish,
        holders=conversation.holders,
    )


def _count_down(counts: dict[str, int], uid: str) -> bool:
    count = counts.get(uid, 0)
    if count == 0:
        return False
    if count == 1:
        del counts[uid]
    else:
        counts[uid] = count - 1
    return True
