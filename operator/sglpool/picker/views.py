"""What a router shows of itself: the JSON state for the operator, and gauges for Prometheus.

Read-only, and made when somebody asks. Not here: the HTTP endpoint (`endpoint`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from sglpool.picker.fleet import Fleet, Member
from sglpool.picker.ledger import Ledger
from sglpool.routing.load import load, prefill_wait_s
from sglpool.routing.state import Conversation

IDLE_S = 60.0
"""A replica is idle only if no conversation that lives on it was seen for so long."""


class Views:
    """State of one router."""

    def __init__(self, *, pool: str, router: str, ledger: Ledger, fleet: Fleet, has_store: bool) -> None:
        """Show these."""
        self._pool = pool
        self._router = router
        self._ledger = ledger
        self._fleet = fleet
        self._has_store = has_store
        self.leaving = False
        """The router's own pod is on its way out."""

    def state(self) -> dict[str, Any]:
        """What /state answers."""
        now_s = self._ledger.clock_s()
        members = self._members()
        idle = self._idle(members, now_s)
        warm = warm_tokens(
            self._ledger.state.conversations.values(), {m.replica.uid for m in members if m.replica.draining}
        )
        return {
            "pool": self._pool,
            "router": self._router,
            "leaving": self.leaving,
            "replicas": [
                {
                    **self._replica(member, now_s),
                    "idle": member.replica.uid in idle,
                    "warm_tokens": warm.get(member.replica.uid),
                }
                for member in members
            ],
            "conversations": len(self._ledger.state.conversations),
            "in_flight": sum(member.replica.own_in_flight for member in members),
            "refused_conversations_last_minute": self._ledger.refused_conversations(),
            "store": {"configured": self._has_store, "available": self._ledger.state.store_available},
        }

    def replicas(self) -> list[dict[str, Any]]:
        """The replicas of `state`, without what takes a look at conversations."""
        now_s = self._ledger.clock_s()
        return [self._replica(member, now_s) for member in self._members()]

    def totals(self) -> dict[str, float]:
        """What is the case in all."""
        return {
            "conversations": len(self._ledger.state.conversations),
            "refused": self._ledger.refused_conversations(),
            "store_available": self._ledger.state.store_available,
        }

    def _members(self) -> list[Member]:
        return sorted(self._fleet.members.values(), key=lambda member: (member.pod.name, member.replica.uid))

    def _idle(self, members: Iterable[Member], now_s: float) -> set[str]:
        """Replicas without a request, on which no conversation lives that was seen lately.

        Conversations are looked at only while a replica without a request may be idle: there are tens of thousands, and
        picks wait meanwhile.
        """
        idle = {member.replica.uid for member in members if _is_quiet(member)}
        homed = {uid for uid in idle if self._ledger.state.homed(uid)}
        if not homed:
            return idle
        for conversation in reversed(self._ledger.state.conversations.values()):
            if conversation.last_seen_s < now_s - IDLE_S:
                break
            if conversation.home in homed:
                homed.remove(conversation.home)
                idle.remove(conversation.home)
                if not homed:
                    break
        return idle

    def _replica(self, member: Member, now_s: float) -> dict[str, Any]:
        replica, pod = member.replica, member.pod
        polled_s = replica.polled_at_s
        return {
            "uid": pod.uid,
            "pod": pod.name,
            "address": replica.address,
            "gpu": pod.gpu,
            "weight": replica.weight,
            "ready": pod.ready,
            "healthy": replica.healthy,
            "draining": replica.draining,
            "terminating": pod.terminating,
            "unproven": not replica.proven,
            "refused": replica.refused,
            "load": load(replica, now_s),
            "in_flight": replica.own_in_flight,
            "others_in_flight": replica.others_in_flight,
            "queued": member.queued,
            "max_concurrent": replica.max_concurrent,
            "kv_used_tokens": replica.kv_used_tokens,
            "kv_total_tokens": replica.kv_total_tokens,
            "prefill_tokens_per_s": replica.prefill_tokens_per_s,
            "prefill_wait_s": round(prefill_wait_s(replica, now_s), 3),
            "conversations": self._ledger.state.homed(replica.uid),
            "missed_polls": member.missed_polls,
            "last_poll_age_s": None if polled_s is None else round(max(0.0, now_s - polled_s), 3),
        }


def _is_quiet(member: Member) -> bool:
    replica = member.replica
    return replica.own_in_flight + replica.others_in_flight == 0 and not member.engine_busy


def warm_tokens(conversations: Iterable[Conversation], uids: Collection[str]) -> dict[str, int]:
    """Tokens that conversations hold at home on these replicas.

    Counted when somebody asks, and only for replicas that are to become empty: a few milliseconds for a full memory, at
    moments when nobody needs the figure for a pick.
    """
    warm = dict.fromkeys(uids, 0)
    if warm:
        for conversation in conversations:
            if conversation.home in warm:
                warm[conversation.home] += conversation.ctx_tokens
    return warm


class Gauges(Collector):
    """What is the case now, as metrics."""

    def __init__(self, views: Views) -> None:
        """Read `views` at every scrape."""
        self._views = views

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing ahead of the first scrape."""
        return ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All gauges."""
        replicas, totals = self._views.replicas(), self._views.totals()
        for name, text, field in (
            ("load", "Requests on a replica, as far as this router knows.", "load"),
            ("in_flight", "Requests that this router has on a replica.", "in_flight"),
            ("queued", "Requests waiting in a replica's engine.", "queued"),
            ("kv_used_tokens", "KV tokens that a replica's requests hold.", "kv_used_tokens"),
            ("kv_total_tokens", "KV tokens that fit on a replica.", "kv_total_tokens"),
            ("homed_conversations", "Conversations that live on a replica.", "conversations"),
            ("replica_healthy", "1 for a replica that may be chosen.", "healthy"),
            ("replica_draining", "1 for a replica that is to become empty.", "draining"),
        ):
            family = GaugeMetricFamily(f"sglpool_router_{name}", text, labels=("pod", "gpu"))
            for replica in replicas:
                family.add_metric((replica["pod"], replica["gpu"]), float(replica[field]))
            yield family
        ratio = variance_to_mean([replica["load"] for replica in replicas if replica["healthy"]])
        for name, text, value in (
            ("conversations", "Conversations that this router remembers.", totals["conversations"]),
            ("load_variance_to_mean", "Variance of the replicas' load over its mean: 1 is chance, 0 is even.", ratio),
            (
                "refused_conversations",
                "Distinct conversations refused within a minute.",
                totals["refused"],
            ),
            ("store_available", "1 while the store of homes answers.", totals["store_available"]),
        ):
            yield GaugeMetricFamily(f"sglpool_router_{name}", text, value=float(value))


def variance_to_mean(loads: list[float]) -> float:
    """Variance over mean, 0 where there is no load."""
    if not loads or sum(loads) == 0:
        return 0.0
    mean = sum(loads) / len(loads)
    return sum((each - mean) ** 2 for each in loads) / len(loads) / mean
