"""The gate of a roll-out: how far a revision is on its way to users, and what the user said about the roll-out.

A revision under a gate runs on one replica, gets no traffic, and has to pass a Job. What is known of it stands on
objects: on the StatefulSet which revision is proven and which has to be, on the Job how its test went, on pods whether
they get traffic. Not here: which ordinals move meanwhile (`plan.settle`), the Job itself (`render.gate`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from sglpool.api import names
from sglpool.api.pool import Gate, Pool
from sglpool.plan.observed import Observed, ObservedPod, ObservedStatefulSet
from sglpool.plan.problems import Problem
from sglpool.plan.steps import DeleteObject, MarkPod, RecordGate, StartGate, Step
from sglpool.plan.surroundings import ObservedJob
from sglpool.render import gate_job, gate_job_name

MAX_ATTEMPTS = 3
"""Tests of a revision, where the pods of all but the last were taken away before they could tell."""


class Word(StrEnum):
    """What the user's annotation says about the roll-out."""

    NOTHING = ""
    PAUSE = "pause"
    ABORT = "abort"
    RESUME = "resume"
    UNKNOWN = "unknown"


class Stage(StrEnum):
    """How far the newest revision is.

    OPEN: it is proven, or there is no gate.
    SERVING: it serves already, so that a gate comes too late: it counts as proven from now on.
    NEW: nothing is written about it yet, and nothing may move before.
    WAITING: no replica runs it yet, or none is ready.
    DUE: a replica is ready for the test.
    RUNNING: the test runs.
    STALE: the test that is there says nothing: its replica is gone, or the user wants another.
    PASSED: the test has passed, which has to be written down.
    FAILED: the test has failed.
    RETURNED: it had failed, and the template of the revision before was put back, which is proven.
    """

    OPEN = "open"
    SERVING = "serving"
    NEW = "new"
    WAITING = "waiting"
    DUE = "due"
    RUNNING = "running"
    STALE = "stale"
    PASSED = "passed"
    FAILED = "failed"
    RETURNED = "returned"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateState:
    """The gate of one StatefulSet.

    Attributes:
        stage: How far its newest revision is.
        word: What the user says.
        job: The Job of its test, the last one if there were several, if there is one.
        attempts: How many tests were begun.
        pod: The replica to test, if there is one.
    """

    stage: Stage = Stage.OPEN
    word: Word = Word.NOTHING
    job: ObservedJob | None = None
    attempts: int = 0
    pod: ObservedPod | None = None

    @property
    def closed(self) -> bool:
        """Whether the newest revision may get no traffic."""
        return self.stage not in {Stage.OPEN, Stage.SERVING, Stage.RETURNED}

    @property
    def goes_back(self) -> bool:
        """Whether replicas have to return to the revision before."""
        return self.word is Word.ABORT or self.stage is Stage.FAILED

    @property
    def held(self) -> bool:
        """Whether no further replica may get the newest revision."""
        return self.goes_back or self.word in {Word.PAUSE, Word.UNKNOWN} or self.stage is Stage.NEW


def word_of(pool: Pool) -> Word:
    """What the pool's annotation says; `resume` may carry a suffix, so that it can be said again."""
    text = pool.annotations.get(names.ANNOTATION_ROLLOUT, "").strip()
    if text.partition("-")[0] == Word.RESUME:
        return Word.RESUME
    return Word(text) if text in {Word.NOTHING, Word.PAUSE, Word.ABORT} else Word.UNKNOWN


def gate_state(pool: Pool, current: ObservedStatefulSet, observed: Observed) -> GateState:
    """How far the newest revision of a StatefulSet is."""
    word, gate = word_of(pool), pool.spec.rollout.gate
    revision, failed = current.update_revision, current.returned_from
    if gate is not None and failed and (current.proven == revision or not current.caught_up):
        attempts, job = _test_of(pool, gate, failed, observed)
        if job is not None and _ended(pool, job, attempts) is Stage.FAILED:
            return GateState(stage=Stage.RETURNED, word=word, job=job, attempts=attempts)
    if gate is None or not revision or current.proven == revision:
        return GateState(word=word)
    pods = [p for p in _own(current, observed.pods) if p.revision == revision]
    if current.gated != revision:
        serving = any(pod.ready and pod.unproven != "true" for pod in pods)
        return GateState(stage=Stage.SERVING if serving else Stage.NEW, word=word)
    attempts, job = _test_of(pool, gate, revision, observed)
    ready = [pod for pod in pods if pod.ready and pod.address]
    pod = max(ready, key=lambda p: p.ordinal, default=None)
    stage = _ended(pool, job, attempts) if job is not None else None
    if job is not None and job.state == "Running":
        stage = Stage.RUNNING if any(each.uid == job.pod_uid for each in pods) else Stage.STALE
    if stage is None:
        stage = Stage.WAITING if pod is None else Stage.DUE
    return GateState(stage=stage, word=word, job=job, attempts=attempts, pod=pod)


def _test_of(pool: Pool, gate: Gate, revision: str, observed: Observed) -> tuple[int, ObservedJob | None]:
    """The last test of a revision, and the how manieth it is."""
    own = {job.name: job for job in observed.jobs if job.owner_uid == pool.uid}
    for attempt in range(MAX_ATTEMPTS, 0, -1):
        job = own.get(gate_job_name(pool, gate, revision, attempt))
        if job is not None:
            return attempt, job
    return 0, None


def returns_to(current: ObservedStatefulSet, state: GateState) -> str:
    """The revision whose template has to be put back after a failure, empty if it need not or cannot.

    Where every replica had the new revision, as in a pool of one, Kubernetes has forgotten the one before: the
    partition brings nobody back.
    """
    forgotten = state.stage is Stage.FAILED and current.current_revision == current.update_revision
    return current.proven if forgotten and current.proven not in {"", names.PROVEN_NONE} else ""


def _ended(pool: Pool, job: ObservedJob, attempts: int) -> Stage | None:
    """What the end of a test means; None while it has none, or one that calls for another test."""
    if job.state == "Passed":
        return Stage.PASSED
    if job.state == "Failed" or (job.state == "Disrupted" and attempts >= MAX_ATTEMPTS):
        again = word_of(pool) is Word.RESUME and pool.annotations[names.ANNOTATION_ROLLOUT] != job.word
        return Stage.STALE if again else Stage.FAILED
    return None


def gate_steps(pool: Pool, current: ObservedStatefulSet, state: GateState, observed: Observed) -> list[Step]:
    """What the gate needs now: a record, a Job, or that a Job goes, and who gets traffic."""
    return [*_traffic(pool, current, state, _own(current, observed.pods)), *_progress(pool, current, state)]


def _progress(pool: Pool, current: ObservedStatefulSet, state: GateState) -> list[Step]:
    name, revision, gate = current.name, current.update_revision, pool.spec.rollout.gate
    match state:
        case GateState(stage=Stage.SERVING):
            return [RecordGate(name=name, proven=revision, gated=revision, reason="it serves already")]
        case GateState(stage=Stage.NEW) if current.caught_up:
            proven = current.proven or (
                names.PROVEN_NONE if current.current_revision == revision else current.current_revision
            )
            return [RecordGate(name=name, proven=proven, gated=revision, reason="it has to pass the gate")]
        case GateState(stage=Stage.PASSED):
            return [RecordGate(name=name, proven=revision, gated=revision, reason="it passed the gate")]
        case GateState(stage=Stage.DUE, pod=ObservedPod() as pod) if gate is not None and state.word is not Word.ABORT:
            attempt = state.attempts + 1
            job = gate_job(pool, gate, revision=revision, pod_uid=pod.uid, address=pod.address, attempt=attempt)
            again = f", and its test was disrupted: attempt {attempt} of {MAX_ATTEMPTS}" if attempt > 1 else ""
            return [StartGate(manifest=job, reason=f"{pod.name} is ready on {revision}{again}")]
        case GateState(stage=Stage.STALE, job=ObservedJob() as job):
            return [DeleteObject(kind="Job", name=job.name, uid=job.uid, reason="its replica is gone, or asked again")]
    return []


def _traffic(pool: Pool, current: ObservedStatefulSet, state: GateState, pods: Iterable[ObservedPod]) -> list[Step]:
    """Marks that keep traffic from what is not proven, and let it in where it is."""
    steps: list[Step] = []
    for pod in pods:
        wanted = _unproven(pool, current, state, pod)
        if pod.unproven == wanted or (not wanted and pod.unproven != "true") or pod.terminating:
            continue
        reason = f"{pod.revision} has not passed the gate" if wanted else f"{pod.revision} may serve"
        annotations = {names.ANNOTATION_UNPROVEN: "true" if wanted else "false"}
        steps.append(MarkPod(name=pod.name, uid=pod.uid, annotations=annotations, reason=reason))
    return steps


def _unproven(pool: Pool, current: ObservedStatefulSet, state: GateState, pod: ObservedPod) -> str:
    """`true` if a pod may get no traffic, else empty."""
    if pool.spec.rollout.gate is None:
        return ""
    if pod.revision == current.update_revision:
        return "true" if state.closed else ""
    # Of older revisions, one that was under a gate and never passed stays without.
    return "true" if current.proven == names.PROVEN_NONE or pod.unproven == "true" else ""


def stale_jobs(pool: Pool, states: Iterable[GateState], observed: Observed) -> list[Step]:
    """Jobs of tests that nobody waits for any more."""
    wanted = {state.job.name for state in states if state.job is not None}
    reason = "its revision or its test is no longer the newest"
    return [
        DeleteObject(kind="Job", name=job.name, uid=job.uid, reason=reason)
        for job in observed.jobs
        if job.owner_uid == pool.uid and job.name not in wanted
    ]


def rollout_hold(pool: Pool, observed: Observed) -> Problem | None:
    """Why a roll-out does not go on, or not yet, for the user; None where nothing holds one.

    Reasons: RolloutUnknownWord, GateFailed, RolloutAborted, RolloutPaused, GateRunning.
    """
    word = pool.annotations.get(names.ANNOTATION_ROLLOUT, "")
    if word_of(pool) is Word.UNKNOWN:
        return Problem(
            "RolloutUnknownWord",
            f"annotation {names.ANNOTATION_ROLLOUT} says {word[:40]!r}, which means nothing: nothing is rolled out. "
            "Set it to pause, resume or abort, or remove it.",
        )
    own = [s for s in observed.statefulsets if s.owner_uid == pool.uid and s.replicas]
    found = [p for s in own for p in (_hold(pool, s, gate_state(pool, s, observed)),) if p is not None]
    return min(found, key=lambda problem: _ORDER.index(problem.reason), default=None)


_ORDER = ("GateFailed", "RolloutAborted", "RolloutPaused", "GateRunning")


def _hold(pool: Pool, current: ObservedStatefulSet, state: GateState) -> Problem | None:
    name, job = current.name, state.job
    if state.stage in {Stage.FAILED, Stage.RETURNED} and job is not None:
        failed = current.returned_from if state.stage is Stage.RETURNED else current.update_revision
        return Problem(
            "GateFailed",
            f"{name}: {failed} failed rollout.gate ({_how(job)}); {_way_back(current, state)}. Read "
            f"`kubectl logs job/{job.name}`; change the spec, or to try again set {names.ANNOTATION_ROLLOUT} to resume "
            f"with a suffix of your choice, or delete the Job.",
        )
    unfinished = current.partition > 0 or current.current_revision != current.update_revision
    if state.word is Word.ABORT and unfinished:
        return Problem(
            "RolloutAborted",
            f"{name}: the roll-out is aborted, replicas run {current.current_revision}. Change the spec back, or "
            f"remove annotation {names.ANNOTATION_ROLLOUT} to roll out again.",
        )
    if state.word is Word.PAUSE and unfinished:
        return Problem(
            "RolloutPaused", f"{name}: the roll-out is paused. Set {names.ANNOTATION_ROLLOUT} to resume, or remove it."
        )
    if state.closed:
        return Problem(
            "GateRunning",
            f"{name}: {current.update_revision} gets no traffic before it passes rollout.gate{_disruptions(state)}.",
        )
    return None


def _how(job: ObservedJob) -> str:
    """How a test failed."""
    words = job.message.rstrip(". ")
    return f"its pod was taken away {MAX_ATTEMPTS} times, at last: {words}" if job.state == "Disrupted" else words


def _disruptions(state: GateState) -> str:
    """How often its test was taken away before it could tell."""
    lost = state.attempts - (state.job is not None and state.job.state != "Disrupted")
    return f"; its test lost its pod {lost} of at most {MAX_ATTEMPTS} times, and is made again" if lost else ""


def _way_back(current: ObservedStatefulSet, state: GateState) -> str:
    if state.stage is Stage.RETURNED:
        return f"its replicas run {current.update_revision} again"
    earlier = returns_to(current, state)
    if not earlier and current.current_revision == current.update_revision:
        return "there is no earlier revision to return to: its replicas stay without traffic"
    return f"its replica returns to {earlier or current.current_revision}"


def _own(current: ObservedStatefulSet, pods: Iterable[ObservedPod]) -> list[ObservedPod]:
    return [pod for pod in pods if pod.owner_uid == current.uid]
