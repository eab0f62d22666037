"""What is wrong with one replica although its probes pass, from what its engine says of itself minute by minute.

Every rule needs figures that are there, fresh and of one run of the engine: what is missing or went back gives no
verdict. A verdict stays until figures contradict it, the engine was restarted, or the pod is gone: a replica that is
being emptied for it does little that would prove it again. Not here: which replica is replaced, and when
(`plan.health`), reading (`signals`).
"""

from dataclasses import dataclass, replace
from enum import StrEnum

WINDOW_S = 300.0
"""Speculation is judged over at least so long: field practice."""
MIN_VERIFY_CALLS = 200.0
MAX_ACCEPT_LENGTH = 1.5
"""Healthy drafts yield 3 to 6 tokens a verify step; a collapsed one nothing but the step's own token."""
MIN_ACCEPT_LENGTH = 0.9
"""A verify step yields a token at least: with fewer, the two counters do not count the same requests."""
RECENT_VERIFY_CALLS = 20.0
"""So many in the newest interval tell whether speculation has recovered."""
STILL_S = 120.0
"""Longer than any pause of a working engine: kernels compiled at first use take up to 80 s."""
KV_TOLERANCE = 0.1
"""The same template gets the same KV pool up to what drivers and NCCL leave free, less than 1 GiB on a GPU: 2% of a
pool of 40 GiB. Below a tenth, more than a cold start would be spent on less than a conversation."""
MAX_GAP_S = 240.0
"""Three reads in a row may be missed; after a longer gap history begins anew."""
FRESH_S = 60.0
_SPACING_S = 10.0
MAX_POINTS = int(WINDOW_S / _SPACING_S) + 3


class Ailment(StrEnum):
    """What can be wrong, the worst first."""

    NO_TOKENS = "NoTokens"
    KV_POOL_SHRUNK = "KVPoolShrunk"
    ACCEPT_LENGTH_COLLAPSED = "AcceptLengthCollapsed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one engine said at one moment.

    Attributes:
        at_s: When.
        requests: Requests running or waiting.
        waiting_tokens: Prompt tokens that wait to be computed: a long prompt in chunks is in no count of requests.
        kv_total_tokens: Size of the KV pool.
        progress: Figures of which some move whenever the GPU computes a token, prompts included; None if unknown.
        generated_tokens: Output tokens of all requests that ended; None if unknown.
        verify_calls: Verify steps of a draft for those; None if unknown.
    """

    at_s: float
    requests: int
    waiting_tokens: int
    kv_total_tokens: int
    progress: tuple[float, ...] | None = None
    generated_tokens: float | None = None
    verify_calls: float | None = None

    @property
    def busy(self) -> bool:
        """Whether there is something to compute."""
        return self.requests > 0 or self.waiting_tokens > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is wrong with a replica.

    Attributes:
        ailment: In one word.
        message: A clause with the figures on which it rests; they do not change any more.
        at_s: Since when.
    """

    ailment: Ailment
    message: str
    at_s: float


@dataclass(frozen=True, slots=True)
class _Point:
    """Both counters of speculation at one moment."""

    at_s: float
    generated_tokens: float
    verify_calls: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaMemory:
    """What is kept of one pod.

    Attributes:
        restarts: Restarts of its containers, of which each begins a new history.
        last: The newest sample of this run of the engine.
        points: Counters of speculation, a window of them.
        still_since_s: Since when it has been busy without progress, None if it is not.
        kv_before_tokens: The largest KV pool that former runs in this pod had.
        verdicts: What is wrong.
    """

    restarts: int = 0
    last: Sample | None = None
    points: tuple[_Point, ...] = ()
    still_since_s: float | None = None
    kv_before_tokens: int = 0
    verdicts: tuple[Verdict, ...] = ()

    def of(self, ailment: Ailment) -> Verdict | None:
        """The verdict of one kind."""
        return next((verdict for verdict in self.verdicts if verdict.ailment == ailment), None)


def observe(
    memory: ReplicaMemory, sample: Sample, *, restarts: int, speculative: bool, peers_kv_tokens: int | None
) -> ReplicaMemory:
    """Take a fresh sample of a replica into account.

    Args:
        memory: What was known.
        sample: What it says now.
        restarts: Restarts of its containers.
        speculative: Whether it drafts.
        peers_kv_tokens: The KV pool that replicas of the same template have, None where none can be asked.
    """
    memory = _same_run(memory, sample, restarts)
    still_since_s = _still_since_s(memory, sample)
    points = _points(memory, sample) if speculative else ()
    found = (
        _no_tokens(memory, sample, still_since_s),
        _kv_pool_shrunk(memory, sample, peers_kv_tokens),
        _accept_length(memory, sample, points),
    )
    return replace(
        memory,
        last=sample,
        points=points,
        still_since_s=still_since_s,
        verdicts=tuple(verdict for verdict in found if verdict is not None),
    )


def _same_run(memory: ReplicaMemory, sample: Sample, restarts: int) -> ReplicaMemory:
    """The memory as far as it is about the run of the engine that the sample is of."""
    last = memory.last
    if last is None:
        # What is known of a pod that was never read is the verdict of a former operator, on one run of the engine.
        return replace(memory, restarts=restarts, verdicts=memory.verdicts if restarts == memory.restarts else ())
    restarted = (
        restarts != memory.restarts or sample.kv_total_tokens != last.kv_total_tokens or _went_back(last, sample)
    )
    if restarted:
        before = max(memory.kv_before_tokens, last.kv_total_tokens)
        return ReplicaMemory(restarts=restarts, kv_before_tokens=before)
    if not 0 < sample.at_s - last.at_s <= MAX_GAP_S:
        return replace(memory, points=(), still_since_s=None)
    return memory


def _went_back(last: Sample, sample: Sample) -> bool:
    """Whether a counter is lower than it was."""
    pairs = ((last.generated_tokens, sample.generated_tokens), (last.verify_calls, sample.verify_calls))
    return any(before is not None and now is not None and now < before for before, now in pairs)


def _still_since_s(memory: ReplicaMemory, sample: Sample) -> float | None:
    last = memory.last
    if not sample.busy or sample.progress is None:
        return None
    unmoved = last is not None and last.busy and last.progress == sample.progress
    return memory.still_since_s if unmoved and memory.still_since_s is not None else sample.at_s


def _no_tokens(memory: ReplicaMemory, sample: Sample, still_since_s: float | None) -> Verdict | None:
    known, last = memory.of(Ailment.NO_TOKENS), memory.last
    if sample.busy and (sample.progress is None or last is None or last.progress == sample.progress) and known:
        return known
    still_s = sample.at_s - still_since_s if still_since_s is not None else 0.0
    if still_s < STILL_S:
        return None
    what = f"{sample.requests:,} requests" if sample.requests else f"a prompt of {sample.waiting_tokens:,} tokens"
    message = f"it has computed no token in {still_s:.0f} s with {what} to answer"
    return Verdict(ailment=Ailment.NO_TOKENS, message=message, at_s=sample.at_s)


def _kv_pool_shrunk(memory: ReplicaMemory, sample: Sample, peers_kv_tokens: int | None) -> Verdict | None:
    """Only a start changes the pool, so the verdict of this run stays; without peers to compare it stays too."""
    known = memory.of(Ailment.KV_POOL_SHRUNK)
    if known is not None:
        return known
    usual = (1 - KV_TOLERANCE) * memory.kv_before_tokens
    if sample.kv_total_tokens < usual:
        message = f"its KV pool has {sample.kv_total_tokens:,} tokens, {memory.kv_before_tokens:,} before its restart"
    elif peers_kv_tokens is not None and sample.kv_total_tokens < (1 - KV_TOLERANCE) * peers_kv_tokens:
        message = f"its KV pool has {sample.kv_total_tokens:,} tokens, those of its peers {peers_kv_tokens:,}"
    else:
        return None
    return Verdict(ailment=Ailment.KV_POOL_SHRUNK, message=message, at_s=sample.at_s)


def _points(memory: ReplicaMemory, sample: Sample) -> tuple[_Point, ...]:
    """The counters with those of now: from the newest that is a whole window old."""
    if sample.generated_tokens is None or sample.verify_calls is None:
        return ()
    now = _Point(sample.at_s, sample.generated_tokens, sample.verify_calls)
    points = memory.points
    # Two that are closer to each other than the spacing say no more than the older one.
    if len(points) > 1 and points[-1].at_s - points[-2].at_s < _SPACING_S:
        points = points[:-1]
    bases = [number for number, point in enumerate(points) if point.at_s <= sample.at_s - WINDOW_S]
    return (*points[bases[-1] if bases else 0 :], now)[-MAX_POINTS:]


def _accept_length(memory: ReplicaMemory, sample: Sample, points: tuple[_Point, ...]) -> Verdict | None:
    known = memory.of(Ailment.ACCEPT_LENGTH_COLLAPSED)
    if not points:
        return known
    base, now = points[0], points[-1]
    calls = now.verify_calls - base.verify_calls
    if now.at_s - base.at_s < WINDOW_S or calls < MIN_VERIFY_CALLS:
        return known
    length = (now.generated_tokens - base.generated_tokens) / calls
    if length < MIN_ACCEPT_LENGTH:
        return known
    if length > MAX_ACCEPT_LENGTH or _recovered(points[-2], now):
        return None
    message = (
        f"its accept length was {length:.2f} over the last {now.at_s - base.at_s:.0f} s ({calls:,.0f} verify calls)"
    )
    return known or Verdict(ailment=Ailment.ACCEPT_LENGTH_COLLAPSED, message=message, at_s=sample.at_s)


def _recovered(before: _Point, now: _Point) -> bool:
    calls = now.verify_calls - before.verify_calls
    return calls >= RECENT_VERIFY_CALLS and (now.generated_tokens - before.generated_tokens) / calls > MAX_ACCEPT_LENGTH
