"""Numbers under the names of `metric_table`, and their Prometheus text.

Written by hand instead of with a client library: an engine counts thousands of stream events a second on one core,
and here a count is one addition. Not here: when which number moves; that is `telemetry`.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Mapping

from sglpool.sandbox.engine.metric_table import FAMILIES, SCOPE_LABELS, Child, Family

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_CHILDREN = 500
"""Series of one family: clients choose paths, and a path is a label."""
_BY_NAME = {family.name: family for family in FAMILIES}
_GO_SWITCHES_AT = 1e6


class Histogram:
    """Counts per bucket, not yet summed up."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_shared(self, value: float, times: int) -> None:
        """Count `value`, that `times` tokens took together, once per token."""
        self.counts[bisect.bisect_left(self.bounds, value / times)] += times
        self.total += value


class Store:
    """Every series of one engine.

    Args:
        model_name: The served name.
        ranks: Tensor parallel size.
        pid: Value of the label that two gauges carry.
        hicache: Whether the hierarchical cache is on.
    """

    def __init__(self, *, model_name: str, ranks: int, pid: str, hicache: bool) -> None:
        self._common = {
            "engine_type": "unified",
            "model_name": model_name,
            "moe_ep_rank": "0",
            "pp_rank": "0",
            "cache_type": "UnifiedRadixCache",
            "dp_rank": "0",
        }
        self._ranks = ranks
        self.values: dict[str, dict[Child, float]] = {}
        self.histograms: dict[str, dict[Child, Histogram]] = {}
        for family in FAMILIES:
            self._start(family, pid, hicache=hicache)

    def _start(self, family: Family, pid: str, *, hicache: bool) -> None:
        children = family.starts_with(hicache=hicache)
        if "pid" in family.labels:
            children = ((pid,),)
        if family.kind == "histogram":
            self.histograms[family.name] = {child: Histogram(family.buckets) for child in children}
        else:
            self.values[family.name] = dict.fromkeys(children, family.start)

    def set(self, name: str, value: float, *child: str) -> None:
        """Set a series to a value."""
        series = self.values[name]
        if child in series or len(series) < MAX_CHILDREN:
            series[child] = value

    def add(self, name: str, amount: float, *child: str) -> None:
        """Add to a series; the first addition creates it."""
        series = self.values[name]
        if child in series or len(series) < MAX_CHILDREN:
            series[child] = series.get(child, 0.0) + amount

    def histogram(self, name: str, *child: str) -> Histogram:
        """A histogram; the first call creates it."""
        series = self.histograms[name]
        if child not in series:
            series[child] = Histogram(_BY_NAME[name].buckets)
        return series[child]

    def get(self, name: str, *child: str) -> float:
        """Value of a counter or gauge.

        Raises:
            KeyError: No such series.
        """
        return self.values[name][child]

    def render(self) -> bytes:
        """Everything as Prometheus text; families without series are left out, as SGLang does."""
        return "".join(line for family in FAMILIES for line in self._family(family)).encode()

    def _family(self, family: Family) -> Iterator[str]:
        series: Mapping[Child, float] | Mapping[Child, Histogram]
        series = self.histograms[family.name] if family.kind == "histogram" else self.values[family.name]
        if not series:
            return
        yield f"# HELP {family.full_name} {family.help}\n# TYPE {family.full_name} {family.kind}\n"
        for child, value in series.items():
            for rank in range(self._ranks if family.every_rank else 1):
                labels = self._labels(family, child, rank)
                if isinstance(value, Histogram):
                    yield from _histogram_lines(family.full_name, labels, value)
                else:
                    yield _line(family.full_name, labels, value)

    def _labels(self, family: Family, child: Child, rank: int) -> dict[str, str]:
        labels = {name: self._common.get(name, "") for name in SCOPE_LABELS[family.scope]}
        if "tp_rank" in labels:
            labels["tp_rank"] = str(rank)
        labels.update(zip(family.labels, child, strict=True))
        return labels


def number(value: float) -> str:
    """A number as Prometheus clients write it: Go's form, which turns to exponents at a million."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    text = repr(float(value))
    if value < _GO_SWITCHES_AT or "e" in text:
        return text
    whole, fraction = text.split(".")
    mantissa = f"{whole[0]}.{whole[1:]}{fraction}".rstrip("0").rstrip(".")
    return f"{mantissa}e+{len(whole) - 1:02d}"


def _histogram_lines(name: str, labels: Mapping[str, str], histogram: Histogram) -> Iterator[str]:
    """Sum, cumulative buckets and count, in SGLang's order."""
    yield _line(f"{name}_sum", labels, histogram.total)
    seen = 0
    for bound, count in zip((*histogram.bounds, math.inf), histogram.counts, strict=True):
        seen += count
        yield _line(f"{name}_bucket", {**labels, "le": number(bound)}, seen)
    yield _line(f"{name}_count", labels, seen)


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    text = ",".join(f'{label}="{_escape(content)}"' for label, content in _sorted(labels))
    return f"{name}{{{text}}} {number(value)}\n" if text else f"{name} {number(value)}\n"


def _sorted(labels: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    return sorted(labels.items())


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
