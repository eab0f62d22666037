"""The event loop: engines, routers and clients in simulated time.

Everything happens at an exact moment and in a fixed order, so that a scenario with a seed has one result.
Not here: what clients are like (`workload`), what routers know (`router`), how engines work (the engine model).
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from sglpool.enginemodel.config import Request
from sglpool.enginemodel.engine import Engine
from sglpool.enginemodel.errors import QueueFull
from sglpool.enginemodel.records import Finished
from sglpool.lab.figures import Figures, Sample, Tally
from sglpool.lab.policies import pick_of
from sglpool.lab.replay import Replay, read_sessions
from sglpool.lab.router import Count, Router
from sglpool.lab.scenario import Resize, Scenario
from sglpool.lab.store import Store
from sglpool.lab.workload import Conversation, Generator, Session, Source, Turn
from sglpool.routing.types import ConversationKey, Decision, Outcome, PickRequest, Rule

CHOSEN = frozenset({Rule.FREE_MOVE, Rule.SPILL, Rule.THICK})
"""Rules by which a policy leaves warm KV because it wants to; by any other it has to."""
STARTS_WITHIN = 0.6
"""Part of the warm-up in which the first clients come: every first prompt is computed from nothing."""
SAMPLE_S = 1.0
KEEP_ALIVE_S = 4.0
"""How long common HTTP clients keep an unused connection: after a longer pause a request may come to another router."""


AT_WORK_S = 60.0
"""A conversation that was seen within this time is at work, as the product has it: its user does not pause."""
GRACE_S = 125.0
"""What a replica still runs so long after its drain is cut."""


class _Engine:
    """A replica: the engine, and when its next event is due."""

    __slots__ = ("due_s", "engine", "in_flight", "in_service", "uid")

    def __init__(self, uid: str, engine: Engine) -> None:
        self.uid = uid
        self.engine = engine
        self.in_flight = 0
        self.in_service = True
        self.due_s: float | None = None


class _Client:
    """A conversation with the session that it belongs to, and what is true of it."""

    __slots__ = ("conversation", "ended_s", "key", "last_uid", "router", "session")

    def __init__(self, session: Session, conversation: Conversation) -> None:
        self.session = session
        self.conversation = conversation
        self.key = ConversationKey(conversation.session, conversation.conversation)
        self.last_uid: str | None = None
        self.router: Router | None = None
        self.ended_s = 0.0


@dataclass(slots=True)
class _Flight:
    """A request on its way."""

    client: _Client
    turn: Turn
    request: PickRequest
    router: Router
    asked_s: float
    ids: bytes
    reserved_uid: str = ""
    uid: str = ""


def _source_of(scenario: Scenario, page_size_tokens: int) -> Source:
    if scenario.trace:
        return Replay(read_sessions(Path(scenario.trace)), scenario.kind, scenario.seed, page_size_tokens)
    return Generator(scenario.kind, scenario.seed, page_size_tokens)


class Simulator:
    """One scenario, run once.

    Attributes:
        tally: what was counted.
        moved_since: conversations that changed their replica since the resize.
        alive_at_resize: conversations that were there at the resize.
        removed_s: when each replica went that was drained.
    """

    def __init__(self, scenario: Scenario, source: Source | None = None) -> None:
        self.scenario = scenario
        self.tally = Tally()
        self.moved_since: set[ConversationKey] = set()
        self.alive_at_resize: set[ConversationKey] = set()
        self.removed_s: dict[str, float] = {}
        self._now_s = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self._rng = random.Random(f"simulator {scenario.seed}")
        page = scenario.engine.page_size_tokens
        self._source = source or _source_of(scenario, page)
        self._store = Store() if scenario.shared_store and scenario.routers > 1 else None
        pick = pick_of(scenario.policy)
        self._routers = [
            Router(pick, scenario.config, self._store, number=number, seed=scenario.seed)
            for number in range(scenario.routers)
        ]
        self._engines: dict[str, _Engine] = {}
        self._flights: dict[str, _Flight] = {}
        self._told: dict[Router, dict[str, Count]] = {}
        self._clients: set[_Client] = set()
        self._prefill_busy_s = 0.0
        self._resized = False

    def run(self) -> Figures:
        """Run to the end and return the figures."""
        scenario = self.scenario
        for _ in range(scenario.replicas):
            self._add_engine()
        for _ in range(scenario.clients):
            self._start_session(under_way=True)
        for number, router in enumerate(self._routers):
            share = (number + 1) / len(self._routers)
            self._at(scenario.poll_s * share, self._poll, router)
            if len(self._routers) > 1:
                self._at(scenario.heartbeat_s * share, self._beat, router)
        self._at(scenario.warmup_s, self._end_warmup)
        self._at(scenario.warmup_s + SAMPLE_S / 2, self._sample)
        if scenario.resize is not None:
            self._at(scenario.resize.at_s, self._resize, scenario.resize)
        if scenario.outage is not None:
            for at_s, available in zip(scenario.outage, (False, True), strict=True):
                self._at(at_s, self._set_store, available)
        while self._events and self._events[0][0] < scenario.seconds:
            self._now_s, _, action, arguments = heappop(self._events)
            action(*arguments)
        measured_s = scenario.seconds - scenario.warmup_s
        busy_s = self._busy_s() - self._prefill_busy_s
        return self.tally.figures(measured_s, busy_s / (measured_s * max(1, len(self._engines))))

    def _at(self, at_s: float, action: Callable[..., None], *arguments: Any) -> None:
        self._sequence += 1
        heappush(self._events, (at_s, self._sequence, action, arguments))

    # Clients.

    def _start_session(self, *, under_way: bool) -> None:
        session = self._source.session(under_way=under_way)
        for conversation in session.conversations:
            spread_s = self._rng.uniform(0, self.scenario.warmup_s * STARTS_WITHIN) if under_way else 0.0
            self._start(session, conversation, self._now_s + conversation.delay_s + spread_s)

    def _start(self, session: Session, conversation: Conversation, at_s: float) -> None:
        client = _Client(session, conversation)
        self._clients.add(client)
        self._at(at_s, self._next_turn, client)

    def _next_turn(self, client: _Client) -> None:
        turn = client.conversation.next_turn()
        if turn is None:
            self._end_client(client)
            return
        conversation = client.conversation
        body_bytes = conversation.body_bytes(turn)
        request = PickRequest(client.key, body_bytes, conversation.session)
        if client.router is None or self._now_s - client.ended_s > KEEP_ALIVE_S:
            client.router = self._rng.choice(self._routers)
        ids = conversation.ids_of(turn, self.scenario.engine.page_size_tokens)
        self._ask(_Flight(client, turn, request, client.router, self._now_s, ids))

    def _end_client(self, client: _Client) -> None:
        self._clients.discard(client)
        if self._store is not None:
            self._store.forget(client.key)
        follower = client.session.successor(client.conversation)
        if follower is not None:
            self._start(client.session, follower, self._now_s)
        elif client.conversation.leads:
            self._start_session(under_way=False)

    # Requests.

    def _ask(self, flight: _Flight) -> None:
        decision = flight.router.pick(flight.request, self._now_s)
        self.tally.rules[decision.rule] += 1
        if decision.home is None:
            self.tally.refused += 1
            self._at(self._now_s + max(0.1, decision.retry_after_s), self._ask, flight)
            return
        flight.reserved_uid = decision.home
        # As Envoy does: one retry, on the second host.
        served = self._submit(flight, decision.home) or (decision.second and self._submit(flight, decision.second))
        if not served:
            self._refuse(flight)
            return
        self._count_move(flight, decision)

    def _submit(self, flight: _Flight, uid: str) -> bool:
        """Hand a request to an engine; False if it refuses."""
        replica = self._engines[uid]
        self._sequence += 1
        rid = str(self._sequence)
        turn = flight.turn
        request = Request(rid=rid, ids=flight.ids, prompt_tokens=turn.prompt_tokens, output_tokens=turn.output_tokens)
        try:
            replica.engine.submit(request, self._now_s)
        except QueueFull:
            return False
        flight.uid = uid
        self._flights[rid] = flight
        replica.in_flight += 1
        self._advance(replica)
        return True

    def _refuse(self, flight: _Flight) -> None:
        outcome = Outcome(
            key=flight.request.key,
            replica_uid=flight.reserved_uid,
            body_bytes=flight.request.body_bytes,
            refused=True,
        )
        flight.router.release(outcome, flight.request, self._now_s)
        self.tally.refused += 1
        self._at(self._now_s + self.scenario.config.retry_after_s, self._ask, flight)

    def _count_move(self, flight: _Flight, decision: Decision) -> None:
        client, turn = flight.client, flight.turn
        before, client.last_uid = client.last_uid, flight.uid
        if before is None or before == flight.uid:
            return
        self.tally.moved += 1
        if self._resized and client.key in self.alive_at_resize:
            self.moved_since.add(client.key)
        if turn.kept_tokens * 2 >= turn.prompt_tokens:
            self.tally.warm_moved += 1
            forced = decision.rule not in CHOSEN
            self.tally.forced += forced
            self.tally.forced_at_work += forced and self._now_s - client.ended_s < AT_WORK_S

    def _finish(self, replica: _Engine, finished: Finished) -> None:
        flight = self._flights.pop(finished.rid)
        replica.in_flight -= 1
        client, turn = flight.client, flight.turn
        cached_tokens = finished.cached_device_tokens + finished.cached_host_tokens
        outcome = Outcome(
            key=flight.request.key,
            replica_uid=flight.reserved_uid,
            body_bytes=flight.request.body_bytes,
            prompt_tokens=finished.prompt_tokens,
            cached_tokens=cached_tokens,
            completion_tokens=finished.completion_tokens,
            finish=turn.finish,
            served_uid=flight.uid,
        )
        flight.router.release(outcome, flight.request, self._now_s)
        client.ended_s = self._now_s
        self._at(self._now_s + turn.gap_s, self._next_turn, client)
        if flight.asked_s < self.scenario.warmup_s:
            return
        tally, page = self.tally, self.scenario.engine.page_size_tokens
        assert finished.first_token_s is not None
        ttft_s = finished.first_token_s - flight.asked_s
        tally.ttfts_s.append(ttft_s)
        tally.asked_s.append(flight.asked_s)
        if turn.kept_tokens * 2 >= turn.prompt_tokens:
            tally.warm_ttfts_s.append(ttft_s)
        tally.prompt_tokens += finished.prompt_tokens
        tally.cached_tokens += cached_tokens
        bound_tokens = min(turn.kept_tokens, finished.prompt_tokens - 1) // page * page
        tally.bound_tokens += bound_tokens
        tally.alone_s.append(self.scenario.engine.rates.prefill_s(finished.prompt_tokens - bound_tokens, bound_tokens))

    # Engines.

    def _add_engine(self, uid: str = "") -> None:
        uid = uid or f"r{len(self._engines)}"
        self._engines[uid] = _Engine(uid, Engine(self.scenario.engine))
        # Those that are there from the start have long been ready.
        ready_s = self._now_s if self._now_s > 0 else -1e6
        for router in self._routers:
            router.add(uid, ready_since_s=ready_s, max_concurrent=self.scenario.max_concurrent)

    def _advance(self, replica: _Engine) -> None:
        for step in replica.engine.advance(self._now_s):
            for finished in step.finished:
                self._finish(replica, finished)
        due_s = replica.engine.next_event_s()
        if due_s != replica.due_s:
            replica.due_s = due_s
            if due_s is not None:
                self._at(due_s, self._engine_due, replica, due_s)

    def _engine_due(self, replica: _Engine, due_s: float) -> None:
        if replica.due_s == due_s:
            self._advance(replica)

    def _resize(self, resize: Resize) -> None:
        self._resized = True
        self.alive_at_resize = {client.key for client in self._clients}
        serving = [replica for replica in self._engines.values() if replica.in_service]
        for _ in range(resize.replicas - len(serving)):
            self._add_engine()
        # As in the product, the highest ordinals go.
        for victim in serving[resize.replicas :]:
            self._drain(victim, self._now_s + resize.drain_s)
            self._at(self._now_s + resize.drain_s, self._leave, victim, self._now_s + resize.drain_s + GRACE_S)

    def _drain(self, victim: _Engine, deadline_s: float) -> None:
        victim.in_service = False
        for router in self._routers:
            router.drain(victim.uid, deadline_s)

    def _leave(self, victim: _Engine, cut_s: float) -> None:
        """Go when nothing runs any more; what runs for too long is cut."""
        if victim.in_flight and self._now_s < cut_s:
            self._at(self._now_s + SAMPLE_S, self._leave, victim, cut_s)
            return
        self.tally.cut += victim.in_flight
        self.removed_s[victim.uid] = self._now_s
        for router in self._routers:
            router.remove(victim.uid)

    # What routers hear, and what is measured.

    def _poll(self, router: Router) -> None:
        readings = [(replica.uid, replica.engine.published) for replica in self._engines.values()]
        if self.scenario.poll_delay_s > 0:
            self._at(self._now_s + self.scenario.poll_delay_s, self._take_poll, router, readings)
        else:
            self._take_poll(router, readings)
        self._at(self._now_s + self.scenario.poll_s, self._poll, router)

    def _take_poll(self, router: Router, readings: list[tuple[str, Any]]) -> None:
        for uid, published in readings:
            router.poll(uid, published, self._now_s)

    def _beat(self, router: Router) -> None:
        """One router tells the others what it has in flight; each does so at its own moment."""
        told = router.tell(self._now_s)
        self._told[router] = told.counts
        for listener in self._routers:
            if listener is not router:
                listener.hear(told, [counts for teller, counts in self._told.items() if teller is not listener])
        self._at(self._now_s + self.scenario.heartbeat_s, self._beat, router)

    def _set_store(self, available: bool) -> None:
        for router in self._routers:
            router.set_store(available=available)

    def _end_warmup(self) -> None:
        self.tally = Tally()
        self._prefill_busy_s = self._busy_s()

    def _busy_s(self) -> float:
        return sum(replica.engine.load().total_prefill_busy_us for replica in self._engines.values()) / 1e6

    def _sample(self) -> None:
        loads = {replica.uid: replica.in_flight for replica in self._engines.values() if replica.in_service}
        self.tally.samples.append(Sample(self._now_s, loads))
        self._at(self._now_s + SAMPLE_S, self._sample)
