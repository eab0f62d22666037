"""What engines say of how they do, by pod IP: `/v1/loads` for what there is to do, `/metrics` for what gets done.

Neither is enough: a long prompt in chunks is in no gauge of `/metrics`, and generated tokens are not in `/v1/loads`. An
engine that does not answer both, whole and in time, has no sample, and a counter that it does not export is missing,
never zero. Not here: what follows (`plan.verdicts`).
"""

import asyncio
import math
from collections.abc import Callable, Sequence

from sglpool.plan.verdicts import Sample
from sglpool.signals.fields import Unreadable, count, objects, parse_object
from sglpool.signals.http import Web
from sglpool.signals.reading import Endpoint

LOADS_PATH = "/v1/loads?include=core"
METRICS_PATH = "/metrics"
LIMIT_S = 10.0
"""Longest time for a pool: whoever has not answered by then has no sample."""
MAX_ASKED = 32
"""Engines of a pool that are asked at a time."""

GENERATED = "sglang:generation_tokens_total"
"""Output tokens of requests that ended."""
VERIFY_CALLS = "sglang:spec_verify_calls_total"
COMPUTED = "sglang:realtime_tokens_total"
"""Tokens of running requests too, prompts and outputs."""
_COUNTERS = (GENERATED, VERIFY_CALLS, COMPUTED)
_LOAD_PROGRESS = ("num_used_tokens", "total_prefill_uncached_tokens", "total_prefill_busy_us")


async def read_samples(
    web: Web, engines: Sequence[Endpoint], port: int, clock_s: Callable[[], float], *, limit_s: float = LIMIT_S
) -> dict[str, Sample]:
    """Samples of the engines that answer, by uid of the pod.

    Args:
        web: Asks pods.
        engines: Whom to ask.
        port: Where they answer.
        clock_s: The time in which samples are dated.
        limit_s: Longest time for all of them.
    """
    turns = asyncio.Semaphore(MAX_ASKED)

    async def read(engine: Endpoint) -> Sample | None:
        async with turns:
            return await _read(web, engine, port, clock_s)

    tasks = {engine.uid: asyncio.create_task(read(engine)) for engine in engines if engine.address}
    try:
        if tasks:
            await asyncio.wait(tasks.values(), timeout=limit_s)
    finally:
        late = [task for task in tasks.values() if not task.done()]
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
    answered = {uid: task.result() for uid, task in tasks.items() if not task.cancelled()}
    return {uid: sample for uid, sample in answered.items() if sample is not None}


async def _read(web: Web, engine: Endpoint, port: int, clock_s: Callable[[], float]) -> Sample | None:
    try:
        # One after the other, the counters last: what moved between the two is then seen as having moved.
        loads = await web.get(engine.address, port, LOADS_PATH)
        metrics = await web.get(engine.address, port, METRICS_PATH)
        return parse_sample(loads, metrics, at_s=clock_s())
    except Unreadable:
        return None


def parse_sample(loads: bytes, metrics: bytes, *, at_s: float) -> Sample:
    """Read both answers, summed over data-parallel ranks.

    Raises:
        Unreadable: An answer is not what an engine says.
    """
    ranks = objects(parse_object(loads), "loads")
    if not ranks:
        raise Unreadable("reports no rank in /v1/loads")
    counters = parse_counters(metrics, _COUNTERS)
    running, waiting, total = (
        sum(count(rank, name) for rank in ranks)
        for name in ("num_running_reqs", "num_waiting_reqs", "max_total_num_tokens")
    )
    if total == 0:
        raise Unreadable("reports no KV pool")
    tokens = [counters[name] for name in (COMPUTED, GENERATED) if name in counters]
    moving = [float(sum(count(rank, name, 0) for rank in ranks)) for name in _LOAD_PROGRESS]
    return Sample(
        at_s=at_s,
        requests=running + waiting,
        waiting_tokens=sum(count(rank, "num_waiting_uncached_tokens", 0) for rank in ranks),
        kv_total_tokens=total,
        # Without the counter that counts while requests run, figures that stand still prove nothing.
        progress=(*tokens, *moving) if COMPUTED in counters else None,
        generated_tokens=counters.get(GENERATED),
        verify_calls=counters.get(VERIFY_CALLS),
    )


def parse_counters(text: bytes, names: Sequence[str]) -> dict[str, float]:
    """Sums over all series of counters, out of Prometheus' text format; one with a value that is no count is missing.

    Only lines of these names are looked at: an engine exports some two thousand others.
    """
    found: dict[str, list[float]] = {}
    starts = {name.encode(): name for name in names}
    for line in text.splitlines():
        name, _, _ = line.partition(b"{") if b"{" in line else line.partition(b" ")
        wanted = starts.get(name)
        if wanted is not None:
            found.setdefault(wanted, []).append(_value(line, name))
    return {name: sum(values) for name, values in found.items() if all(math.isfinite(v) and v >= 0 for v in values)}


def _value(line: bytes, name: bytes) -> float:
    """The value behind the labels; a time stamp may follow it."""
    rest = line[len(name) :]
    words = rest[rest.rfind(b"}") + 1 :].split()
    try:
        return float(words[0])
    except (IndexError, ValueError):
        return math.nan
