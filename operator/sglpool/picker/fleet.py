"""From pods and polls to replicas: who exists, who may be chosen, and what Envoy's endpoint file says.

A replica is one life of an engine: a pod made anew or an engine that was restarted has an empty cache, so it is
another replica, and conversations that lived there fail over. Not here: reading pods (`pods`), asking engines
(`polls`), writing files (`files`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sglpool.picker.ledger import Ledger
from sglpool.picker.pods import COMPONENT_ENGINE, COMPONENT_ROUTER, PodView
from sglpool.routing.load import load
from sglpool.routing.pickerconfig import CLUSTER_NAME, PickerConfig
from sglpool.routing.types import Replica

MAX_REVISIONS = 64
"""Revisions that are remembered as unproven; a pool has two at a time."""
MISSED_POLLS = 2
"""So many polls without an answer in time, and a replica gets no new request."""
_ENDPOINTS = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"


@dataclass(slots=True)
class Member:
    """A replica with what is known of its pod and its polls.

    Attributes:
        pod: The pod, as seen last.
        replica: What the policy sees.
        missed_polls: Polls in a row that were not answered in time.
        dead: Its port refused the last poll: the process is not there.
        queued: Requests waiting in the engine, by the last good poll.
        engine_busy: The engine's own counts were not all zero in the last good poll; true before the first.
        full: It is marked full in the endpoint file.
    """

    pod: PodView
    replica: Replica
    missed_polls: int = 0
    dead: bool = False
    queued: int = 0
    engine_busy: bool = True
    full: bool = False


class Fleet:
    """All engines and routers of the pool."""

    def __init__(self, config: PickerConfig, ledger: Ledger, on_change: Callable[[], None]) -> None:
        """Start empty.

        Args:
            config: The pool's settings.
            ledger: Whose replicas are kept.
            on_change: Called when the endpoint file may have to be written anew.
        """
        self.members: dict[str, Member] = {}
        """Engines that have an address, by replica uid."""
        self.routers: dict[str, PodView] = {}
        """Router pods by uid, our own among them."""
        self._unproven: dict[str, None] = {}
        """Revisions that get no traffic yet: since a pod of one was marked, until one of it is marked as proven.

        So a pod made anew while the operator is away, which nobody has marked, gets none either.
        """
        self._config = config
        self._ledger = ledger
        self._on_change = on_change

    # Pods.

    def sync(self, pods: list[PodView]) -> None:
        """Take the whole list: what is not in it is gone."""
        there = {pod.uid for pod in pods}
        for uid in [uid for uid, member in self.members.items() if member.pod.uid not in there]:
            self._remove(uid)
        for uid in [uid for uid in self.routers if uid not in there]:
            del self.routers[uid]
        for pod in sorted(pods, key=lambda pod: pod.proven):
            self._note_revision(pod)
        # The newest holder of an address comes last: `Ledger.put` gives it the address.
        for pod in sorted(pods, key=lambda pod: pod.ready_since_s or 0.0):
            self.put(pod)
        self._ledger.state.forget_replicas(set(self.members))
        self._on_change()

    def put(self, pod: PodView) -> None:
        """Take a pod as it is now."""
        if pod.component == COMPONENT_ROUTER:
            self.routers[pod.uid] = pod
        elif pod.component == COMPONENT_ENGINE:
            self._put_engine(pod)

    def gone(self, pod_uid: str) -> None:
        """Forget a pod that was deleted."""
        self.routers.pop(pod_uid, None)
        for uid in [uid for uid, member in self.members.items() if member.pod.uid == pod_uid]:
            self._remove(uid)

    def _put_engine(self, pod: PodView) -> None:
        if self._note_revision(pod):
            for member in self.members.values():
                self._refresh(member)
        uid = replica_uid(pod)
        for other in [each for each, member in self.members.items() if member.pod.uid == pod.uid and each != uid]:
            self._remove(other)
        if pod.over or not pod.ip:
            self._remove(uid)
            return
        address = _address(pod.ip, self._config.engine_port)
        known = self.members.get(uid)
        if known is None or known.replica.address != address:
            self._remove(uid)
            known = self.members[uid] = Member(pod, self._replica(uid, address, pod))
        known.pod = pod
        self._refresh(known)
        if pod.ready and known.replica.ready_since_s == 0.0:
            known.replica.ready_since_s = pod.ready_since_s or 0.0
        self._ledger.put(known.replica)
        self._on_change()

    def _note_revision(self, pod: PodView) -> bool:
        """Learn from a pod's mark whether its revision gets traffic; whether that is news."""
        before = pod.revision in self._unproven
        if pod.proven:
            self._unproven.pop(pod.revision, None)
        elif pod.unproven and pod.revision and not self._is_proven(pod.revision):
            self._unproven[pod.revision] = None
            if len(self._unproven) > MAX_REVISIONS:
                del self._unproven[next(iter(self._unproven))]
        return before != (pod.revision in self._unproven)

    def _is_proven(self, revision: str) -> bool:
        return any(member.pod.proven and member.pod.revision == revision for member in self.members.values())

    def _replica(self, uid: str, address: str, pod: PodView) -> Replica:
        return Replica(
            uid=uid,
            address=address,
            weight=self._config.weights.get(pod.gpu, 1.0),
            max_concurrent=self._config.max_concurrent_requests,
        )

    def _remove(self, uid: str) -> None:
        if self.members.pop(uid, None) is not None:
            self._ledger.remove(uid)
            self._on_change()

    def _refresh(self, member: Member) -> None:
        pod, replica = member.pod, member.replica
        answers = not member.dead and member.missed_polls < MISSED_POLLS
        # A pod that is going gets nothing new: its engine ends within its grace.
        replica.healthy = pod.ready and not pod.terminating and answers
        replica.proven = not pod.unproven and (pod.proven or pod.revision not in self._unproven)
        replica.draining = pod.draining or pod.terminating
        replica.drain_deadline_s = pod.drain_deadline_s

    # Polls.

    def answered(self, member: Member) -> None:
        """A poll was answered in time."""
        self._polled(member, missed=0, dead=False)

    def missed(self, member: Member, *, dead: bool) -> None:
        """A poll was not answered; `dead` when nobody listens there."""
        self._polled(member, missed=member.missed_polls + 1, dead=dead)

    def _polled(self, member: Member, *, missed: int, dead: bool) -> None:
        before = member.replica.healthy
        member.missed_polls, member.dead = missed, dead
        self._refresh(member)
        if member.replica.healthy != before:
            self._on_change()

    # What others are told.

    def mark_full(self) -> None:
        """Note who is full, so that Envoy's own choice avoids it; with a gap, so that it does not flicker."""
        now_s = self._ledger.clock_s()
        for member in self.members.values():
            limit = member.replica.max_concurrent
            requests = load(member.replica, now_s)
            full = member.replica.refused or requests >= (limit * 0.8 if member.full else limit)
            if full != member.full:
                member.full = full
                self._on_change()

    def endpoints(self) -> dict[str, Any]:
        """Content of the endpoint file: everyone that may serve, DRAINING where only a pick may send requests.

        A pod of an unproven revision, or one that has never been ready, is not in it: Envoy's own choice would find it.
        """
        entries = [_entry(member) for _, member in sorted(self.members.items()) if _is_endpoint(member)]
        assignment = {"@type": _ENDPOINTS, "cluster_name": CLUSTER_NAME, "endpoints": [{"lb_endpoints": entries}]}
        return {"resources": [assignment]}

    def siblings(self, own_uid: str) -> list[PodView]:
        """The other routers, who knows most first: that is who has been ready for longest.

        One that is going is among them: it still has streams, and of a pool's only router it knows every home.
        """
        others = [pod for uid, pod in self.routers.items() if uid != own_uid and pod.ip and not pod.over]
        return sorted(others, key=lambda pod: (not pod.ready, pod.ready_since_s or 0.0, pod.uid))


def replica_uid(pod: PodView) -> str:
    """Name of an engine's life: the pod's uid, and the number of its restarts when there were any."""
    return f"{pod.uid}.{pod.restarts}" if pod.restarts else pod.uid


def _address(ip: str, port: int) -> str:
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def _is_endpoint(member: Member) -> bool:
    return member.replica.proven and member.replica.ready_since_s > 0.0


def _entry(member: Member) -> Mapping[str, Any]:
    replica = member.replica
    host, _, port = replica.address.rpartition(":")
    place = {"socket_address": {"address": host.strip("[]"), "port_value": int(port)}}
    usable = replica.healthy and not replica.draining and not member.full
    return {"endpoint": {"address": place}, "health_status": "HEALTHY" if usable else "DRAINING"}
