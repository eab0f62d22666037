"""What a simulation yields: counts while it runs, and the figures made of them. Not here: goals and tables."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import ceil

LIGHT, HEAVY = 1, 12
"""Loads of a replica that should hardly ever be seen when the mean is about 5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The result of a simulation.

    Attributes:
        mean_load: requests on a replica.
        vmr: variance of that over its mean: 1 is a Poisson distribution, 0 is even.
        light_share: how often a replica has at most one request.
        heavy_share: how often it has twelve or more.
        hit_rate: cached share of all prompt tokens.
        hit_bound: the same if every conversation had stayed where it was and nothing were ever evicted.
        ttft_p50_s: time to the first token, retries included.
        ttft_p99_s: the same, of the slowest hundredth.
        warm_ttft_p99_s: the same among requests most of whose prompt could be cached.
        alone_p99_s: the slowest hundredth of prompts if each were computed alone and where its cache is: a floor.
        requests_per_s: requests that ended.
        requests: requests that ended after the warm-up.
        moved_share: requests that came to another replica than the one before of their conversation.
        warm_moved_share: those of them that left most of their prompt behind.
        forced_warm_moves: those that had no choice.
        forced_at_work: of these, conversations that were at work, and not at a pause of their user.
        refused: requests that were told to come again.
        prefill_share: time that engines spent in prefill.
        rules: decisions by rule.
    """

    mean_load: float
    vmr: float
    light_share: float
    heavy_share: float
    hit_rate: float
    hit_bound: float
    ttft_p50_s: float
    ttft_p99_s: float
    warm_ttft_p99_s: float
    alone_p99_s: float
    requests_per_s: float
    requests: int
    moved_share: float
    warm_moved_share: float
    forced_warm_moves: int
    forced_at_work: int
    refused: int
    prefill_share: float
    rules: dict[str, int]


@dataclass(slots=True)
class Sample:
    """Loads of the replicas in service at a moment, by uid."""

    at_s: float
    loads: dict[str, int]


@dataclass(slots=True)
class Tally:
    """Counts while a simulation runs.

    Attributes:
        samples: loads, once a second.
        ttfts_s: times to the first token.
        asked_s: when these requests came.
        warm_ttfts_s: those of requests most of whose prompt could be cached.
        alone_s: prefill times of prompts computed alone, with perfect affinity.
        prompt_tokens: of requests that ended.
        cached_tokens: of these, found cached.
        bound_tokens: of these, cached with perfect affinity.
        moved: requests that came to another replica than the one before.
        warm_moved: those that left most of their prompt behind.
        forced: those that had no choice.
        forced_at_work: of these, conversations at work.
        cut: requests that still ran when their replica had to go.
        refused: requests that were told to come again.
        rules: decisions by rule.
    """

    samples: list[Sample] = field(default_factory=list)
    ttfts_s: list[float] = field(default_factory=list)
    asked_s: list[float] = field(default_factory=list)
    warm_ttfts_s: list[float] = field(default_factory=list)
    alone_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    bound_tokens: int = 0
    moved: int = 0
    warm_moved: int = 0
    forced: int = 0
    forced_at_work: int = 0
    cut: int = 0
    refused: int = 0
    rules: Counter[str] = field(default_factory=Counter)

    def figures(self, seconds: float, prefill_share: float) -> Figures:
        """Make the figures of so many seconds."""
        loads = [sample.loads.values() for sample in self.samples]
        mean, variance = _moments(loads)
        every = [load for each in loads for load in each]
        ended = max(1, len(self.ttfts_s))
        ttfts_s = sorted(self.ttfts_s)
        return Figures(
            mean_load=mean,
            vmr=variance / mean if mean else 0.0,
            light_share=sum(load <= LIGHT for load in every) / max(1, len(every)),
            heavy_share=sum(load >= HEAVY for load in every) / max(1, len(every)),
            hit_rate=self.cached_tokens / max(1, self.prompt_tokens),
            hit_bound=self.bound_tokens / max(1, self.prompt_tokens),
            ttft_p50_s=_rank(ttfts_s, 0.50),
            ttft_p99_s=_rank(ttfts_s, 0.99),
            warm_ttft_p99_s=_rank(sorted(self.warm_ttfts_s), 0.99),
            alone_p99_s=_rank(sorted(self.alone_s), 0.99),
            requests_per_s=len(ttfts_s) / seconds,
            requests=len(ttfts_s),
            moved_share=self.moved / ended,
            warm_moved_share=self.warm_moved / ended,
            forced_warm_moves=self.forced,
            forced_at_work=self.forced_at_work,
            refused=self.refused,
            prefill_share=prefill_share,
            rules=dict(self.rules),
        )


def ttft_p99_between(tally: Tally, from_s: float, to_s: float) -> float:
    """Time to the first token of the slowest hundredth of the requests that came in a span of time."""
    asked = zip(tally.asked_s, tally.ttfts_s, strict=True)
    return _rank(sorted(ttft_s for asked_s, ttft_s in asked if from_s <= asked_s < to_s), 0.99)


def vmr_between(samples: Sequence[Sample], from_s: float, to_s: float) -> float:
    """Variance over mean of the load in a span of time."""
    mean, variance = _moments([each.loads.values() for each in samples if from_s <= each.at_s < to_s])
    return variance / mean if mean else 0.0


def seconds_to_share(samples: Sequence[Sample], uids: set[str], since_s: float, share: float, window_s: int) -> float:
    """How long some replicas take until their load is such a share of the mean of all, over a window; inf if never."""
    recent: list[tuple[float, float]] = []
    for sample in samples:
        if sample.at_s < since_s or not sample.loads:
            continue
        own = [load for uid, load in sample.loads.items() if uid in uids]
        recent.append((sum(own) / max(1, len(own)), sum(sample.loads.values()) / len(sample.loads)))
        if len(recent) > window_s:
            recent.pop(0)
        if len(recent) == window_s and sum(own for own, _ in recent) >= share * sum(mean for _, mean in recent):
            return sample.at_s - since_s
    return float("inf")


def _moments(samples: Sequence[Collection[int]]) -> tuple[float, float]:
    """Mean load, and the variance among replicas at a moment, averaged over the moments."""
    means = variances = 0.0
    count = 0
    for loads in samples:
        if not loads:
            continue
        mean = sum(loads) / len(loads)
        means += mean
        variances += sum((load - mean) ** 2 for load in loads) / len(loads)
        count += 1
    return (means / count, variances / count) if count else (0.0, 0.0)


def _rank(ranked: Sequence[float], share: float) -> float:
    return ranked[max(0, ceil(share * len(ranked)) - 1)] if ranked else 0.0
