"""One router of a simulation: the routing policy with what a real router knows, and nothing more.

It sees lengths of bodies, usage when a response has ended, the engines' snapshots as old as its polls, and the counts
of other routers as old as their heartbeats. Not here: time and engines (`simulator`).
"""

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sglpool.enginemodel.records import Load
from sglpool.lab.store import Store
from sglpool.routing.baselines import Pick
from sglpool.routing.estimate import note_prefill
from sglpool.routing.policy import release
from sglpool.routing.state import RoutingState
from sglpool.routing.types import ConversationKey, Decision, Outcome, PickRequest, PolicyConfig, Replica


class Count(NamedTuple):
    """What a router has on one replica: requests, and conversations about to come back."""

    in_flight: int
    pending: int


class Taken(NamedTuple):
    """A conversation that came to another router than before: which one had it, and since when it has not."""

    number: int
    key: ConversationKey
    at_s: float


class Told(NamedTuple):
    """A router's heartbeat: its counts by replica, and conversations that it took over."""

    counts: dict[str, Count]
    taken: list[Taken]


class Router:
    """A policy and its view of the pool.

    Attributes:
        number: how other routers know it.
        state: what it remembers.
        replicas: the pool as it sees it, by uid.
    """

    def __init__(self, pick: Pick, config: PolicyConfig, store: Store | None, *, number: int, seed: int) -> None:
        self.number = number
        self.state = RoutingState(config)
        self.replicas: dict[str, Replica] = {}
        self._pick = pick
        self._config = config
        self._store = store
        self._rng = random.Random(f"router {seed} {number}")
        self._taken: list[Taken] = []

    def add(self, uid: str, *, ready_since_s: float, max_concurrent: int) -> None:
        """See a new replica."""
        self.replicas[uid] = Replica(uid=uid, address=uid, ready_since_s=ready_since_s, max_concurrent=max_concurrent)

    def drain(self, uid: str, deadline_s: float) -> None:
        """See that a replica is going to be removed."""
        replica = self.replicas[uid]
        replica.draining, replica.drain_deadline_s = True, deadline_s

    def stay(self, uid: str) -> None:
        """See that a replica is not going to be removed after all."""
        replica = self.replicas[uid]
        replica.draining, replica.drain_deadline_s = False, None

    def remove(self, uid: str) -> None:
        """See that a replica is gone."""
        del self.replicas[uid]
        self.state.forget_replicas(set(self.replicas))

    def set_store(self, *, available: bool) -> None:
        """See the store go away or come back."""
        self.state.store_available = available

    def pick(self, request: PickRequest, now_s: float) -> Decision:
        """Decide where a request goes."""
        key = request.key
        shared = self._store is not None and self.state.store_available
        if self._store is not None and shared and key is not None:
            writer = self._store.read(key, self.state)
            if writer is not None and writer != self.number:
                self._taken.append(Taken(writer, key, now_s))
        decision = self._pick(self.state, request, self.replicas, now_s, self._rng, self._config)
        self._write(request)
        return decision

    def release(self, outcome: Outcome, request: PickRequest, now_s: float) -> None:
        """Learn how a request ended."""
        release(self.state, self.replicas, outcome, now_s, self._config)
        self._write(request)

    def poll(self, uid: str, published: Load, now_s: float) -> None:
        """Take in the snapshot that an engine published last."""
        replica = self.replicas.get(uid)
        if replica is None:
            return
        in_flight = published.running + published.waiting
        replica.polled_in_flight, replica.polled_at_s = in_flight, now_s
        replica.own_picks_since_poll = replica.own_releases_since_poll = 0
        replica.kv_used_tokens, replica.kv_total_tokens = published.used_tokens, published.max_total_tokens
        busy = published.used_tokens > 0 or published.waiting_uncached_tokens > 0
        replica.prefilling = in_flight == 0 and busy
        if published.waiting < replica.max_concurrent // 2:
            replica.refused = False
        if published.total_prefill_busy_us > 0:
            rate = published.total_prefill_uncached_tokens / published.total_prefill_busy_us * 1e6
            replica.prefill_tokens_per_s = rate
        note_prefill(self.state, replica, published.waiting_uncached_tokens, now_s)

    def tell(self, now_s: float) -> Told:
        """What it tells other routers."""
        self.state.expire(now_s)
        taken, self._taken = self._taken, []
        counts = {
            uid: Count(replica.own_in_flight, self.state.pending_on(uid)) for uid, replica in self.replicas.items()
        }
        return Told(counts, taken)

    def hear(self, told: Told, others: Sequence[Mapping[str, Count]]) -> None:
        """Take in one router's heartbeat, and the counts that all others told last."""
        for taken in told.taken:
            if taken.number == self.number:
                self.state.came_back_elsewhere(taken.key, taken.at_s)
        for uid, replica in self.replicas.items():
            counts = [each[uid] for each in others if uid in each]
            replica.others_in_flight = sum(each.in_flight for each in counts)
            replica.others_pending = sum(each.pending for each in counts)

    def _write(self, request: PickRequest) -> None:
        if self._store is None or not self.state.store_available or request.key is None:
            return
        conversation = self.state.get(request.key)
        if conversation is not None:
            self._store.write(conversation, self.number)
