"""What engines say of how they do, by pod IP: `/v1/loads` for what there is to do, `/metrics` for what gets done.

Neither is enough: a long prompt in chunks is in no gauge of `/metrics`, and generated tokens are not in `/v1/loads`. An
engine that does not answer both, whole and in time, has no sample, and a counter that it does not export is missing,
never zero. Not here: what follows (`plan.verdicts`).
"""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from sglpool.plan.verdicts import Sample
from sglpool.signals.fields import Unreadable, parse_object
from sglpool.signals.http import Web
from sglpool.signals.loads import LOADS_PATH, ranks_of, total
from sglpool.signals.reading import Endpoint

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
    web: Web,
    engines: Sequence[Endpoint],
    port: int,
    clock_s: Callable[[], float],
    *,
    drafts: bool,
    limit_s: float = LIMIT_S,
) -> dict[str, Sample]:
    """Samples of the engines that answer, by uid of the pod.

    Args:
        web: Asks pods.
        engines: Whom to ask.
        port: Where they answer.
        clock_s: The time in which samples are dated.
        drafts: Whether they speculate, so that an idle one has something to tell too.
        limit_s: Longest time for all of them.
    """
    turns = asyncio.Semaphore(MAX_ASKED)

    async def read(engine: Endpoint) -> Sample | None:
        async with turns:
            return await _read(web, engine, port, clock_s, drafts=drafts)

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


async def _read(web: Web, engine: Endpoint, port: int, clock_s: Callable[[], float], *, drafts: bool) -> Sample | None:
    try:
        # One after the other, the counters last: what moved between the two is then seen as having moved.
        sample = parse_loads(await web.get(engine.address, port, LOADS_PATH), at_s=clock_s())
        if drafts or sample.busy:
            return add_counters(sample, await web.get(engine.address, port, METRICS_PATH))
    except Unreadable:
        return None
    return sample


def parse_loads(body: bytes, *, at_s: float) -> Sample:
    """Read an answer of `/v1/loads`, summed over data-parallel ranks.

    Raises:
        Unreadable: It is not what an engine says.
    """
    ranks = ranks_of(parse_object(body))
    running, waiting = total(ranks, "num_running_reqs"), total(ranks, "num_waiting_reqs")
    capacity = total(ranks, "max_total_num_tokens")
    if capacity == 0:
        raise Unreadable("reports no KV pool")
    return Sample(
        at_s=at_s,
        requests=running + waiting,
        waiting_tokens=total(ranks, "num_waiting_uncached_tokens", 0),
        kv_total_tokens=capacity,
        progress=tuple(float(total(ranks, name, 0)) for name in _LOAD_PROGRESS),
    )


def add_counters(sample: Sample, metrics: bytes) -> Sample:
    """A sample of `/v1/loads` with what `/metrics` says.

    Without the counter that counts while requests run, figures that stand still prove nothing.
    """
    counters = parse_counters(metrics, _COUNTERS)
    tokens = [counters[name] for name in (COMPUTED, GENERATED) if name in counters]
    return replace(
        sample,
        progress=(*tokens, *(sample.progress or ())) if COMPUTED in counters else None,
        generated_tokens=counters.get(GENERATED),
        verify_calls=counters.get(VERIFY_CALLS),
    )


def parse_counters(text: bytes, names: Sequence[str]) -> dict[str, float]:
    """Sums over all series of counters, out of Prometheus' text format; one with a value that is no count is missing.

    The names are searched for: an engine exports a thousand other lines, which a parser would take milliseconds for.
    """
    found = {}
    for name in names:
        values = [_value(rest) for rest in _series(text, name.encode())]
        if values and all(math.isfinite(value) and value >= 0 for value in values):
            found[name] = sum(values)
    return found


def _series(text: bytes, name: bytes) -> Iterator[bytes]:
    """What follows a name in each of its lines: labels, value and perhaps a time stamp."""
    at = text.find(name)
    while at >= 0:
        end = text.find(b"\n", at)
        end = len(text) if end < 0 else end
        rest = text[at + len(name) : end]
        # Not within a comment, and not the beginning of a longer name.
        if text[at - 1 : at] in {b"", b"\n"} and rest[:1] in {b"{", b" ", b"\t"}:
            yield rest
        at = text.find(name, end)


def _value(rest: bytes) -> float:
    words = rest[rest.rfind(b"}") + 1 :].split()
    try:
        return float(words[0])
    except (IndexError, ValueError):
        return math.nan
