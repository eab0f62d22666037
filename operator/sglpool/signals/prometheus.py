"""The engines' figures from a Prometheus that scrapes them, each with the age of its sample.

One query with a range selector gives raw samples with their own times: an instant query would call a sample of five
minutes ago current. Series of other pools, namespaces and former pods of a name are left out, and what is not a number
is missing. The client library blocks, so it runs in threads, few and bounded in time. Not here: the routers' counts.
"""

import asyncio
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from sglpool.signals.fields import MAX_COUNT, Unreadable
from sglpool.signals.reading import Endpoint, PrometheusAt, ReplicaReading, Target

LIMIT_S = 2.0
"""Longest wait for a Prometheus."""
THREADS = 8
WINDOW = "2m"
"""Samples that the query looks at; the age of the last one decides whether it counts."""
AHEAD_S = 15.0
"""A sample from the future: so far may two machines' clocks differ."""
SAME_SCRAPE_S = 5.0
"""Series of one pod, one for each rank, that belong together."""

RUNNING, QUEUED, USED, TOTAL = (
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "sglang:num_used_tokens",
    "sglang:max_total_num_tokens",
)
METRICS = (RUNNING, QUEUED, USED, TOTAL)

Series = Mapping[str, Any]
Query = Callable[[PrometheusAt, str, float], list[Series]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusReading:
    """What a Prometheus says.

    Attributes:
        replicas: By uid of the pod; one that is not in it is missing.
        problems: What is missing and why.
    """

    replicas: Mapping[str, ReplicaReading] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def _ask(prometheus: PrometheusAt, text: str, limit_s: float) -> list[Series]:
    # The library and what it rests on take some MB, so only an operator that needs them loads them.
    from sglpool.signals.promclient import query

    return query(prometheus, text, limit_s)


class PrometheusReader:
    """Asks Prometheus, in threads of its own.

    Args:
        ask: Sends a query, with a limit in seconds, and blocks.
        limit_s: Longest wait.
        wall_clock_s: Unix time.
    """

    def __init__(
        self, *, ask: Query = _ask, limit_s: float = LIMIT_S, wall_clock_s: Callable[[], float] = time.time
    ) -> None:
        self._ask = ask
        self._limit_s = limit_s
        self._wall_clock_s = wall_clock_s
        self._threads: ThreadPoolExecutor | None = None
        self._busy: set[tuple[str, str]] = set()

    def close(self) -> None:
        """Begin nothing any more; threads that still wait end by their own limits."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def read(self, prometheus: PrometheusAt, target: Target) -> PrometheusReading:
        """The figures of a pool's engines; never fails."""
        key = (target.namespace, target.pool)
        if key in self._busy:
            return _nothing(prometheus, "has not answered the last question yet")
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="prometheus")
        self._busy.add(key)
        asked = asyncio.wrap_future(self._threads.submit(self._ask, prometheus, promql(target), self._limit_s))
        asked.add_done_callback(lambda _: self._busy.discard(key))
        try:
            # A thread cannot be stopped: it ends by its own limit, and until then this pool asks nothing more.
            async with asyncio.timeout(self._limit_s):
                series = await asyncio.shield(asked)
        except TimeoutError:
            asked.add_done_callback(lambda done: None if done.cancelled() else done.exception())
            return _nothing(prometheus, f"does not answer in {self._limit_s:g} s")
        except Unreadable as problem:
            return _nothing(prometheus, str(problem))
        return parse_series(series, prometheus, target, now_s=self._wall_clock_s())


def _nothing(prometheus: PrometheusAt, words: str) -> PrometheusReading:
    return PrometheusReading(problems=(f"Prometheus {prometheus.url} {words}.",))


def promql(target: Target) -> str:
    """The query: raw samples of four gauges of all engines of the pool."""
    pods = f"{re.escape(target.pool)}-[a-z0-9]+-[0-9]+".replace("\\", "\\\\")
    names = "|".join(METRICS)
    return f'{{__name__=~"{names}",namespace="{target.namespace}",pod=~"{pods}"}}[{WINDOW}]'


def parse_series(
    series: Iterable[Series], prometheus: PrometheusAt, target: Target, *, now_s: float
) -> PrometheusReading:
    """Read the answer: the newest sample of each gauge of each pod."""
    engines = {engine.name: engine for engine in target.engines}
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for one in series:
        labels = one.get("metric")
        if not isinstance(labels, dict) or labels.get("namespace") != target.namespace:
            continue
        engine = engines.get(str(labels.get("pod")))
        sample = _last(one.get("values"))
        if engine is not None and sample is not None and engine.since_s <= sample[0] <= now_s + AHEAD_S:
            found.setdefault(engine.uid, {}).setdefault(str(labels.get("__name__")), []).append(sample)
    replicas = {
        engine.uid: reading
        for engine in target.engines
        if (reading := _replica(found.get(engine.uid, {}), now_s=now_s)) is not None
    }
    return PrometheusReading(
        replicas=replicas,
        problems=tuple(
            _missing(prometheus, engine) for engine in target.engines if engine.required and engine.uid not in replicas
        ),
    )


def _missing(prometheus: PrometheusAt, engine: Endpoint) -> str:
    return (
        f"Prometheus {prometheus.url} has no current figures of pod {engine.name}: it must scrape the engines' "
        f"/metrics and keep the labels namespace and pod."
    )


def _last(values: object) -> tuple[float, float] | None:
    """Time and value of the last sample of a series, None if that is no load."""
    try:
        at, text = values[-1]  # type: ignore[index]
        value = float(text)
        if math.isfinite(float(at)) and 0 <= value <= MAX_COUNT:
            return float(at), value
    except (TypeError, ValueError, LookupError, OverflowError):
        pass
    return None


def _replica(gauges: Mapping[str, list[tuple[float, float]]], *, now_s: float) -> ReplicaReading | None:
    """One replica, if all four gauges are there and make sense."""
    newest = {name: _newest(samples) for name, samples in gauges.items()}
    if any(name not in newest for name in METRICS):
        return None
    running, queued, used, total = (int(newest[name][1]) for name in METRICS)
    if total <= 0 or used > total:
        return None
    return ReplicaReading(
        in_flight=max(running + queued, 1 if used else 0),
        queued=queued,
        kv_used_tokens=used,
        kv_total_tokens=total,
        age_s=max(0.0, now_s - min(newest[name][0] for name in METRICS)),
    )


def _newest(samples: list[tuple[float, float]]) -> tuple[float, float]:
    """The newest sample; every rank of an engine says the same of the whole, so of one scrape the largest."""
    last_s = max(at for at, _ in samples)
    return last_s, max(value for at, value in samples if last_s - at <= SAME_SCRAPE_S)
