"""What the router has in flight: reservations by pick id, and the policy around them.

A pick reserves a slot at once; the access log's line of that pick gives it back. Lines can fail to come (Envoy died,
asked too late, or sent the request elsewhere), so Envoy's own count of active requests corrects the ledger: what it
does not confirm lapses, what it has beyond the ledger is counted as well. Not here: I/O, and the decision itself
(`routing.policy`).
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sglpool.picker import pickid
from sglpool.picker.metrics import Metrics
from sglpool.routing import keys
from sglpool.routing.pickerconfig import HEADER_LENGTH, HEADER_REQUEST_ID
from sglpool.routing.policy import lapse, pick, release
from sglpool.routing.state import RoutingState
from sglpool.routing.types import (
    FINISHES,
    ConversationKey,
    Decision,
    Outcome,
    PickRequest,
    PolicyConfig,
    Randomness,
    Replica,
)

LAPSE_S = 5.0
"""A reservation older than this must be confirmed by Envoy's count, or it lapses."""
MAX_RESERVATIONS = 100_000
"""More than any pool has slots: beyond it the oldest lapse, so that memory is bounded whatever happens."""
REFUSED_WINDOW_S = 60.0
MAX_REFUSED_KEYS = 20_000


@dataclass(slots=True)
class Reservation:
    """A slot that a pick took and nobody gave back yet."""

    key: ConversationKey | None
    uid: str
    address: str
    body_bytes: int
    at_s: float


class Picked(NamedTuple):
    """Where a request goes.

    Attributes:
        destination: `ip:port` of the home, and of the second host after a comma.
        pick_id: what the access log will call it.
        decision: what the policy decided.
        old_home: the conversation's home before, None if it had none.
    """

    destination: str
    pick_id: str
    decision: Decision
    old_home: str | None


class Refused(NamedTuple):
    """Every replica is at its limit; `retry_after_s` is when to try again."""

    retry_after_s: float


class Entry(NamedTuple):
    """A line of the access log: how a request ended. Absent values are None."""

    pick_id: str
    upstream: str | None
    status: int
    flags: str
    attempts: int
    finish: str
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    refused: bool


class Ledger:
    """Replicas, conversations and reservations of one router. Not thread-safe: it lives on one event loop."""

    def __init__(
        self,
        config: PolicyConfig,
        metrics: Metrics,
        rng: Randomness,
        clock_s: Callable[[], float],
    ) -> None:
        """Start empty.

        Args:
            config: the policy's constants.
            metrics: what is counted for Prometheus.
            rng: breaks ties.
            clock_s: Unix time, never going back within this process.
        """
        self.config = config
        self.state = RoutingState(config)
        self.replicas: dict[str, Replica] = {}
        self.reservations: OrderedDict[str, Reservation] = OrderedDict()
        self.clock_s = clock_s
        self._metrics = metrics
        self._rng = rng
        self._uid_at: dict[str, str] = {}
        self._refused: OrderedDict[ConversationKey, float] = OrderedDict()
        self._difference: dict[str, int] = {}
        self._extra: dict[str, int] = {}
        self._series = os.urandom(3).hex()
        self._count = 0

    # Replicas.

    def put(self, replica: Replica) -> None:
        """Add a replica. An address belongs to the newest replica that was added with it."""
        self.replicas[replica.uid] = replica
        self._uid_at[replica.address] = replica.uid

    def remove(self, uid: str) -> None:
        """Forget a replica that is gone; its reservations go as their requests end."""
        replica = self.replicas.pop(uid, None)
        if replica is not None and self._uid_at.get(replica.address) == uid:
            del self._uid_at[replica.address]
        self._difference.pop(uid, None)
        self._extra.pop(uid, None)

    def uid_at(self, address: str | None) -> str | None:
        """The replica at an address now."""
        return self._uid_at.get(address) if address is not None else None

    # Requests.

    def pick(self, key: ConversationKey | None, headers: Mapping[str, str]) -> Picked | Refused | None:
        """Decide where a request goes and reserve its slot.

        Returns:
            None when there is no replica to choose or to wait for: then Envoy answers by itself.
        """
        now_s = self.clock_s()
        body_bytes = length_of(headers)
        fallback = keys.fallback_key(key, headers.get(HEADER_REQUEST_ID, ""))
        known = self.state.get(key) if key is not None else None
        old_home = known.home if known is not None else None
        decision = pick(
            self.state, PickRequest(key, body_bytes, fallback), self.replicas, now_s, self._rng, self.config
        )
        self._metrics.decided(decision)
        if decision.home is None:
            if decision.retry_after_s <= 0:
                return None
            self._note_refusal(key, now_s)
            return Refused(decision.retry_after_s)
        return self._reserve(decision, key, body_bytes, now_s, old_home)

    def _reserve(
        self, decision: Decision, key: ConversationKey | None, body_bytes: int, now_s: float, old_home: str | None
    ) -> Picked:
        assert decision.home is not None
        home = self.replicas[decision.home]
        second = self.replicas.get(decision.second) if decision.second is not None else None
        self._count += 1
        pick_id = pickid.make(self._series, self._count, key, body_bytes)
        self.reservations[pick_id] = Reservation(key, home.uid, home.address, body_bytes, now_s)
        if len(self.reservations) > MAX_RESERVATIONS:
            self._lapse(next(iter(self.reservations)), now_s)
        destination = f"{home.address},{second.address}" if second is not None else home.address
        return Picked(destination, pick_id, decision, old_home)

    def _note_refusal(self, key: ConversationKey | None, now_s: float) -> None:
        if key is None:
            return
        self._refused[key] = now_s
        self._refused.move_to_end(key)
        if len(self._refused) > MAX_REFUSED_KEYS:
            self._refused.popitem(last=False)

    def refused_conversations(self) -> int:
        """Distinct conversations that were refused in the last minute: load that no count in flight shows."""
        since_s = self.clock_s() - REFUSED_WINDOW_S
        while self._refused and next(iter(self._refused.values())) < since_s:
            self._refused.popitem(last=False)
        return len(self._refused)

    def ended(self, entry: Entry) -> ConversationKey | None:
        """Give back the slot of a request that ended, and learn from it.

        Returns:
            Its conversation, if it has one.
        """
        now_s = self.clock_s()
        reservation = self.reservations.pop(entry.pick_id, None)
        if reservation is None:
            return self._ended_unknown(entry, now_s)
        served = reservation.uid
        if entry.upstream is not None and entry.upstream != reservation.address:
            served = self.uid_at(entry.upstream) or served
        if entry.attempts > 1 and served != reservation.uid:
            # The home refused or died: out of the choice until a poll says that it is well.
            self._suspect(reservation.uid)
        self._learn(entry, reservation.key, reservation.uid, served, reservation.body_bytes, now_s)
        return reservation.key

    def _ended_unknown(self, entry: Entry, now_s: float) -> ConversationKey | None:
        """A pick of the process before this one, or one whose slot has lapsed: there is no slot to give back."""
        try:
            key, body_bytes = pickid.parse(entry.pick_id)
        except ValueError:
            self._metrics.bad_log_lines.inc()
            return None
        served = self.uid_at(entry.upstream)
        if served is None:
            return None
        replica = self.replicas[served]
        kept = (replica.own_in_flight, replica.own_releases_since_poll)
        self._learn(entry, key, served, served, body_bytes, now_s)
        replica.own_in_flight, replica.own_releases_since_poll = kept
        if key is not None and entry.status == 200:
            self._adopt(key, served, body_bytes, entry, now_s)
        return key

    def _adopt(self, key: ConversationKey, uid: str, body_bytes: int, entry: Entry, now_s: float) -> None:
        """Remember where an unknown conversation was served: its KV is there."""
        known = self.state.get(key)
        if known is not None and known.home is not None:
            return
        prompt = entry.prompt_tokens or 0
        self.state.absorb(
            {
                "session": key.session,
                "conversation": key.conversation,
                "home": uid,
                "last_seen_s": now_s,
                "ctx_tokens": prompt + (entry.completion_tokens or 0),
                "ctx_bytes": body_bytes,
                "tokens_per_byte": prompt / body_bytes if body_bytes else 0.0,
                "last_finish": entry.finish,
                "holders": [],
            },
            now_s,
        )

    def _learn(
        self, entry: Entry, key: ConversationKey | None, uid: str, served: str, body_bytes: int, now_s: float
    ) -> None:
        outcome = Outcome(
            key=key,
            replica_uid=uid,
            body_bytes=body_bytes,
            prompt_tokens=entry.prompt_tokens,
            cached_tokens=entry.cached_tokens,
            completion_tokens=entry.completion_tokens,
            finish=entry.finish if entry.finish in FINISHES else "unknown",
            refused=entry.refused,
            served_uid=served if served != uid else None,
        )
        release(self.state, self.replicas, outcome, now_s, self.config)
        self._metrics.ended(outcome)

    def _suspect(self, uid: str) -> None:
        replica = self.replicas.get(uid)
        if replica is not None:
            replica.refused = True

    # Envoy's own count.

    def confirm(self, active: Mapping[str, int], asked_at_s: float) -> None:
        """Compare with what Envoy says is active by address. A difference counts when two answers agree on it.

        Args:
            active: requests by `ip:port`; an address that is absent has none.
            asked_at_s: when Envoy was asked: later picks cannot be in its answer.
        """
        now_s = self.clock_s()
        mine: dict[str, list[str]] = {uid: [] for uid in self.replicas}
        for pick_id, reservation in self.reservations.items():
            if reservation.at_s <= asked_at_s:
                mine.setdefault(reservation.uid, []).append(pick_id)
        for uid, own in mine.items():
            replica = self.replicas.get(uid)
            shown = active.get(replica.address, 0) if replica is not None else 0
            difference = shown - len(own)
            before = self._difference.get(uid, 0)
            self._difference[uid] = difference
            surplus = min(-difference, -before)
            if surplus > 0:
                old = [each for each in own if now_s - self.reservations[each].at_s > LAPSE_S]
                for pick_id in old[:surplus]:
                    self._lapse(pick_id, now_s)
            self._extra[uid] = max(0, min(difference, before))
        self._recount()

    def _recount(self) -> None:
        """Own counts anew: reservations, and what Envoy has beyond them."""
        counts: dict[str, int] = {}
        for reservation in self.reservations.values():
            counts[reservation.uid] = counts.get(reservation.uid, 0) + 1
        for uid in [uid for uid in self._difference if uid not in self.replicas and uid not in counts]:
            self._difference.pop(uid)
            self._extra.pop(uid, None)
        for uid, replica in self.replicas.items():
            replica.own_in_flight = counts.get(uid, 0) + self._extra.get(uid, 0)

    def _lapse(self, pick_id: str, now_s: float) -> None:
        reservation = self.reservations.pop(pick_id)
        lapse(self.state, self.replicas, reservation.key, reservation.uid, now_s)
        self._metrics.lapsed.inc()


def length_of(headers: Mapping[str, str]) -> int:
    """The request's content length, 0 when it has none."""
    text = headers.get(HEADER_LENGTH, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else 0
