"""An hour of a fluid day, request by request: clients, the routing policy, engines, and the autoscaler on top of them.

The loop is closed: what the autoscaler decides changes where requests go, and what waits there changes what it reads.
It tells whether the fluid model, which has neither requests nor caches, can be believed. Replicas start and drain as
they do in the fluid model; a drain ends early as in the product, once nobody lives there any more.
Not here: which hour that is (`fluid_windows`), and the event loop (`simulator`).
"""

import copy
from collections import deque
from dataclasses import dataclass, field

from sglpool.lab.figures import Figures
from sglpool.lab.fluid import ABOVE, STEP_S
from sglpool.lab.fluid_scalers import GPU
from sglpool.lab.fluid_windows import Entry
from sglpool.lab.scenario import Scenario
from sglpool.lab.simulator import AT_WORK_S, GRACE_S, Simulator, _Client, _Engine, _Flight
from sglpool.lab.workload import LONGEST_USER_GAP_S, USER_GAP_S, Conversation, Kind, Session
from sglpool.routing.types import ConversationKey
from sglpool.scaling import ReplicaSample, Signals, StartingReplica, TypeState, decide

WARMUP_S = 600.0
SESSIONS_PER_REQUEST = {Kind.AUTONOMOUS: 1.33, Kind.INTERACTIVE: 6.4}
"""So many sessions keep one request in flight where replicas carry a little over four, as an autoscaler has them."""
IDLE_READS = 2
"""A draining replica is done when nobody who lives there is at work, at so many ticks in a row."""
PAUSE_S = 30.0
"""Clients that are too many go where they have paused for so long, as people do who end their day."""
REFUSED_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """What an hour was like.

    Attributes:
        figures: of the requests.
        above: share of the time with more than `ABOVE` of the target on a serving replica.
        mean_in_flight: concurrent requests.
        cut: requests that were running when their replica's grace was over.
        added: replicas that became ready.
        let_go: replicas that were removed.
        grown, shrunk: decisions.
        drains_s: how long each drain took that began and ended in the hour.
        fluid_above: `above` of the fluid model on the very load that the requests made.
    """

    figures: Figures
    above: float
    mean_in_flight: float
    cut: int
    added: int
    let_go: int
    grown: int
    shrunk: int
    drains_s: tuple[float, ...]
    fluid_above: float


@dataclass(slots=True)
class _Counts:
    """Counts of the hour."""

    in_flight: list[int] = field(default_factory=list)
    above: int = 0
    grown: int = 0
    shrunk: int = 0
    added: int = 0
    let_go: int = 0
    drains_s: list[float] = field(default_factory=list)


def run_window(entry: Entry, kind: Kind, seed: int) -> Joined:
    """Simulate a window request by request; the entry is not changed."""
    return JoinedSimulator(entry, kind, seed).joined()


class JoinedSimulator(Simulator):
    """The simulator with an autoscaler, and with as many clients as the load of the day asks for."""

    def __init__(self, entry: Entry, kind: Kind, seed: int) -> None:
        self._entry = entry
        self._fleet = copy.deepcopy(entry.fleet)
        self._scaler = copy.deepcopy(entry.scaler)
        self._per_request = SESSIONS_PER_REQUEST[kind]
        ready = [pod.uid for pod in self._fleet.pods if pod.ready_s <= entry.window.begin_s]
        self._uids = deque(ready)
        self._sessions, self._wanted_sessions = 0, self._sessions_at(0)
        self._counts = _Counts()
        self._draining_since_s: dict[str, float] = {}
        self._idle: dict[str, int] = {}
        self._refused_s: dict[ConversationKey, float] = {}
        self._arriving = False
        self._people = kind is Kind.INTERACTIVE
        scenario = Scenario(
            kind=kind,
            replicas=len(ready),
            sessions=self._wanted_sessions,
            seconds=WARMUP_S + entry.window.seconds,
            warmup_s=WARMUP_S,
            seed=seed,
        )
        super().__init__(scenario)

    def joined(self) -> Joined:
        """Run it."""
        figures, counts = self.run(), self._counts
        return Joined(
            figures=figures,
            above=counts.above / len(counts.in_flight),
            mean_in_flight=sum(counts.in_flight) / len(counts.in_flight),
            cut=self.tally.cut,
            added=counts.added,
            let_go=counts.let_go,
            grown=counts.grown,
            shrunk=counts.shrunk,
            drains_s=tuple(counts.drains_s),
            fluid_above=self._entry.again(counts.in_flight).above,
        )

    # The load of the day.

    def _sessions_at(self, step: int) -> int:
        return round(self._entry.load[step] * self._per_request)

    def _start_session(self, *, under_way: bool) -> None:
        if under_way or self._sessions < self._wanted_sessions:
            self._sessions += 1
            super()._start_session(under_way=under_way)

    def _start(self, session: Session, conversation: Conversation, at_s: float) -> None:
        super()._start(session, conversation, at_s + self._thinks_s())

    def _thinks_s(self) -> float:
        """People who come more than go are found at any point of their work: mostly in a pause."""
        if not self._arriving or not self._people or self._rng.random() < 1 / self._per_request:
            return 0.0
        while True:
            # Who looks at a moment finds long pauses more often.
            pause_s = min(USER_GAP_S.draw(self._rng), LONGEST_USER_GAP_S)
            if self._rng.random() * LONGEST_USER_GAP_S < pause_s:
                return pause_s * self._rng.random()

    @property
    def _least_pause_s(self) -> float:
        return PAUSE_S if self._people else 0.0

    def _end_client(self, client: _Client) -> None:
        self._sessions -= client.conversation.leads
        super()._end_client(client)

    def _next_turn(self, client: _Client) -> None:
        too_many = self._sessions > self._wanted_sessions and client.conversation.leads
        if too_many and client.router is not None and self._now_s - client.ended_s >= self._least_pause_s:
            self._end_client(client)
        else:
            super()._next_turn(client)

    def _ask(self, flight: _Flight) -> None:
        refused = self.tally.refused
        super()._ask(flight)
        if self.tally.refused > refused:
            self._refused_s[flight.client.key] = self._now_s

    # The pool.

    def _add_engine(self, uid: str = "") -> None:
        super()._add_engine(uid or self._uids.popleft())

    def _end_warmup(self) -> None:
        super()._end_warmup()
        self._step(0)

    @property
    def _day_s(self) -> float:
        return self._entry.window.begin_s + self._now_s - WARMUP_S

    def _step(self, number: int) -> None:
        """What the fluid model does in a step: the load, the decision if it is time, and the replicas."""
        if number == len(self._entry.load):
            return
        self._wanted_sessions = self._sessions_at(number)
        self._arriving = True
        while self._sessions < self._wanted_sessions:
            self._start_session(under_way=False)
        self._arriving = False
        if number % round(self._scaler.every_s / STEP_S) == 0:
            self._tick()
        self._follow()
        in_flight = sum(replica.in_flight for replica in self._engines.values())
        carried = in_flight / max(1e-9, self._fleet.serving(self._day_s) * self._fleet.target)
        self._counts.in_flight.append(in_flight)
        self._counts.above += carried > ABOVE
        self._at(self._now_s + STEP_S, self._step, number + 1)

    def _tick(self) -> None:
        now_s, scaler = self._day_s, self._scaler
        before = scaler.last.total if scaler.last else self._fleet.staying
        self._note_idle()
        scaler.last, scaler.memory = decide(scaler.policy, self._signals(before), scaler.memory, now_s)
        self._counts.grown += scaler.last.total > before
        self._counts.shrunk += scaler.last.total < before
        self._fleet.resize(scaler.last.total, now_s)

    def _signals(self, wanted: int) -> Signals:
        """What the operator would read."""
        pods = self._fleet.pods
        ready = [(pod.uid, self._engines[pod.uid].engine.published) for pod in pods if pod.uid in self._engines]
        starting = tuple(
            StartingReplica(uid=pod.uid, ordinal=ordinal, since_s=pod.since_s)
            for ordinal, pod in enumerate(pods)
            if pod.uid not in self._engines
        )
        samples = tuple(
            ReplicaSample(
                uid=uid,
                gpu_type=GPU,
                running=load.running + load.waiting,
                kv_used_tokens=load.used_tokens,
                kv_total_tokens=load.max_total_tokens,
                age_s=1.0,
            )
            for uid, load in ready
        )
        self._refused_s = {key: at_s for key, at_s in self._refused_s.items() if self._now_s - at_s < REFUSED_S}
        state = TypeState(type=GPU, replicas=max(wanted, len(pods)), ready=len(ready), starting=starting)
        return Signals(
            in_flight=sum(replica.in_flight for replica in self._engines.values()),
            types=(state,),
            replicas=samples,
            refused_conversations=len(self._refused_s),
            queued=sum(load.waiting for _, load in ready),
            age_s=1.0,
        )

    def _note_idle(self) -> None:
        """A replica where nobody is at work need not wait for the end of its drain."""
        now_s = self._now_s
        busy = set().union(*(router.state.homes_seen_since(now_s - AT_WORK_S) for router in self._routers))
        for uid in self._draining_since_s:
            idle = uid not in busy and not self._engines[uid].in_flight
            self._idle[uid] = self._idle.get(uid, 0) + 1 if idle else 0
            if self._idle[uid] >= IDLE_READS:
                self._fleet.end_drain(uid, self._day_s)

    def _follow(self) -> None:
        """Let engines and routers be as the fleet is."""
        now_s = self._day_s
        self._fleet.resize(self._fleet.staying, now_s)
        for pod in self._fleet.pods:
            if pod.ready_s <= now_s and pod.uid not in self._engines:
                self._add_engine(pod.uid)
                self._counts.added += 1
            replica = self._engines.get(pod.uid)
            if replica is None:
                continue
            if pod.leaves_s is not None and replica.in_service:
                self._drain(replica, self._now_s + pod.leaves_s - now_s)
                self._draining_since_s[pod.uid] = self._now_s
            elif pod.leaves_s is None and not replica.in_service:
                self._stay(replica)
        there = {pod.uid for pod in self._fleet.pods}
        for uid in [each for each in self._draining_since_s if each not in there]:
            self._counts.let_go += 1
            since_s = self._draining_since_s.pop(uid)
            if since_s > self.scenario.warmup_s:
                self._counts.drains_s.append(self._now_s - since_s)
            self._leave(self._engines[uid], self._now_s + GRACE_S)

    def _stay(self, replica: _Engine) -> None:
        replica.in_service = True
        del self._draining_since_s[replica.uid]
        self._idle.pop(replica.uid, None)
        for router in self._routers:
            router.stay(replica.uid)
