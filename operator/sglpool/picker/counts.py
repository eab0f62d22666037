"""Counters and a histogram that cost a pick next to nothing, as prometheus_client's families when somebody asks.

The client library's own take a lock and a label's lookup each time, some microseconds of every request; a picker lives
on one event loop, where scrapes are answered as well. Not here: which there are (`metrics`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class Count:
    """A number that only grows."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        """Begin at zero."""
        self.total = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Add `amount`, not negative."""
        self.total += amount


class Times:
    """Durations by size.

    Attributes:
        bounds_s: Upper bounds, ascending; a duration on a bound belongs to it.
        counts: Durations up to each bound and above the one before; the last are beyond all.
        sum_s: Of all.
    """

    __slots__ = ("bounds_s", "counts", "sum_s")

    def __init__(self, bounds_s: Sequence[float]) -> None:
        """Begin without any."""
        self.bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def observe(self, duration_s: float) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds_s, duration_s)] += 1
        self.sum_s += duration_s

    def cumulative(self) -> list[tuple[str, float]]:
        """As Prometheus wants them: by bound, how many are not above it."""
        found, total = [], 0
        for bound, count in zip((*map(str, self.bounds_s), "+Inf"), self.counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found


class Counts(Collector):
    """All of them under their names."""

    def __init__(self) -> None:
        """Begin with none."""
        self._counts: dict[str, tuple[str, str, dict[str, Count]]] = {}
        self._times: dict[str, tuple[str, Times]] = {}

    def count(self, name: str, text: str) -> Count:
        """A new counter.

        Args:
            name: Its name, without `_total`.
            text: What it counts.
        """
        return self.counts(name, text, "", ("",))[""]

    def counts(self, name: str, text: str, label: str, values: Iterable[str]) -> dict[str, Count]:
        """A new counter by the values of one label."""
        made = {value: Count() for value in values}
        self._counts[name] = (text, label, made)
        return made

    def times(self, name: str, text: str, bounds_s: Sequence[float]) -> Times:
        """A new histogram."""
        made = Times(bounds_s)
        self._times[name] = (text, made)
        return made

    def describe(self) -> Iterable[Metric]:
        """Nothing ahead of the first scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All of them as they are now."""
        for name, (text, label, counts) in self._counts.items():
            family = CounterMetricFamily(name, text, labels=[label] if label else [])
            for value, count in counts.items():
                family.add_metric([value] if label else [], count.total)
            yield family
        for name, (text, times) in self._times.items():
            histogram = HistogramMetricFamily(name, text)
            histogram.add_metric([], buckets=times.cumulative(), sum_value=times.sum_s)
            yield histogram
