"""Figures of a recording: percentiles, hit rates and decisions, over time and over the whole run.

Not here: how they are shown (`report`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sglpool.sandbox.report_data import Recording, Request, Sample

WINDOW_S = 5.0
"""A point of a curve stands for the requests of so long."""
FEWEST_FOR_P99 = 10
"""A p99 of fewer requests is their slowest one, which says little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Requests that were sent within a few seconds.

    Attributes:
        at_s: Its middle.
        requests: How many were answered.
        failed: How many were not.
        p50_s: Median of the time to the first token; None without requests.
        p99_s: 99th percentile of the same; None with too few requests.
        hit_rate: Cached share of all prompt tokens; None without requests.
    """

    at_s: float
    requests: int
    failed: int
    p50_s: float | None
    p99_s: float | None
    hit_rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A change of what the pool wants.

    Attributes:
        at_s: When it was first seen.
        before: Replicas before.
        after: Replicas from then on.
        why: One word.
        because: A sentence.
    """

    at_s: float
    before: int
    after: int
    why: str
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Requests that failed in the same way.

    Attributes:
        problem: Why, in a few words.
        count: How many.
        first_s: When the first of them was sent.
        last_s: When the last of them was sent.
    """

    problem: str
    count: int
    first_s: float
    last_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Figures of the whole run.

    Attributes:
        requests: Answered requests.
        failed: Requests that failed.
        p50_s: Median of the time to the first token; None without requests.
        p99_s: 99th percentile of the same.
        hit_rate: Cached share of all prompt tokens.
        prompt_tokens: Prompt tokens of answered requests.
        fewest: Fewest ready replicas since as many as were wanted were ready for the first time.
        most: Most ready replicas.
    """

    requests: int
    failed: int
    p50_s: float | None
    p99_s: float | None
    hit_rate: float | None
    prompt_tokens: int
    fewest: int
    most: int


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that is not below `share` of all; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def hit_rate(requests: Iterable[Request]) -> float | None:
    """Cached share of the prompt tokens; None without any."""
    counted = [(request.cached_tokens, request.prompt_tokens) for request in requests if not request.problem]
    prompts = sum(prompt for _, prompt in counted)
    return sum(cached for cached, _ in counted) / prompts if prompts else None


def windows(requests: Sequence[Request], width_s: float = WINDOW_S) -> list[Window]:
    """Requests by the window in which they were sent, oldest first; windows without any are left out."""
    by_window: dict[int, list[Request]] = {}
    for request in requests:
        by_window.setdefault(int(request.at_s // width_s), []).append(request)
    return [_window(number, by_window[number], width_s) for number in sorted(by_window)]


def _window(number: int, requests: Sequence[Request], width_s: float) -> Window:
    times_s = [request.first_token_s for request in requests if not request.problem]
    return Window(
        at_s=(number + 0.5) * width_s,
        requests=len(times_s),
        failed=len(requests) - len(times_s),
        p50_s=percentile(times_s, 0.5),
        p99_s=percentile(times_s, 0.99) if len(times_s) >= FEWEST_FOR_P99 else None,
        hit_rate=hit_rate(requests),
    )


def decisions(samples: Sequence[Sample]) -> list[Decision]:
    """Every change of the wanted replicas, with the reason that came with it; the first number counts as one."""
    found: list[Decision] = []
    before = 0
    for sample in samples:
        after = sample.wanted if sample.decided is None else sample.decided
        if sample.types and after != before:
            why, because = sample.why, sample.because
            if sample.decided is None:
                why, because = "Fixed", "spec.replicas says so."
            found.append(Decision(at_s=sample.at_s, before=before, after=after, why=why, because=because))
            before = after
    return found


def failures(requests: Iterable[Request]) -> list[Failure]:
    """Failed requests by what went wrong, the most frequent first."""
    sent_s: dict[str, list[float]] = {}
    for request in requests:
        if request.problem:
            sent_s.setdefault(request.problem, []).append(request.at_s)
    found = [
        Failure(problem=problem, count=len(at_s), first_s=min(at_s), last_s=max(at_s))
        for problem, at_s in sent_s.items()
    ]
    return sorted(found, key=lambda failure: (-failure.count, failure.problem))


def totals(recording: Recording) -> Totals:
    """Figures of the whole run."""
    answered = [request for request in recording.requests if not request.problem]
    times_s = [request.first_token_s for request in answered]
    complete = (at for at, sample in enumerate(recording.samples) if sample.ready >= max(1, sample.wanted))
    serving = [sample.ready for sample in recording.samples[next(complete, 0) :]]
    return Totals(
        requests=len(answered),
        failed=len(recording.requests) - len(answered),
        p50_s=percentile(times_s, 0.5),
        p99_s=percentile(times_s, 0.99),
        hit_rate=hit_rate(answered),
        prompt_tokens=sum(request.prompt_tokens for request in answered),
        fewest=min(serving, default=0),
        most=max(serving, default=0),
    )
