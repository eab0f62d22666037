"""The engines' own counts, `/v1/loads` by pod IP: for pools without a router.

A request in a chunked prefill is in neither of SGLang's counts; only its tokens show it. That the endpoint answers does
not mean that the engine is ready. Not here: pools with a router, which polls the engines itself.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from sglpool.signals.fields import Unreadable, parse_object
from sglpool.signals.http import Web
from sglpool.signals.loads import LOADS_PATH, ranks_of, total
from sglpool.signals.reading import Endpoint, Reading, ReplicaReading, Target


async def read_engines(web: Web, target: Target) -> Reading:
    """Ask all engines of a pool at once, those too that are not ready: they may still have requests."""
    engines = [engine for engine in target.engines if engine.address]
    asked = dict(
        zip(engines, await asyncio.gather(*(_ask(web, one, target.engine_port) for one in engines)), strict=True)
    )
    problems = tuple(answer for engine, answer in asked.items() if isinstance(answer, str) and engine.required)
    return reading_of(
        {engine.uid: answer for engine, answer in asked.items() if isinstance(answer, ReplicaReading)}, problems
    )


async def _ask(web: Web, engine: Endpoint, port: int) -> ReplicaReading | str:
    """An engine's counts, or the sentence that says why there are none."""
    try:
        return parse_loads(parse_object(await web.get(engine.address, port, LOADS_PATH)))
    except Unreadable as problem:
        return f"Replica {engine.name} {problem}."


def reading_of(replicas: Mapping[str, ReplicaReading], problems: tuple[str, ...]) -> Reading:
    """The reading of a pool in which nobody but the engines counts requests."""
    return Reading(
        in_flight=float(sum(replica.in_flight for replica in replicas.values())) if replicas else None,
        queued=sum(replica.queued for replica in replicas.values()),
        replicas=dict(replicas),
        problems=problems,
    )


def parse_loads(body: Mapping[str, Any]) -> ReplicaReading:
    """Read an answer of `/v1/loads`, summed over data-parallel ranks.

    Raises:
        Unreadable: A field is missing or no count, or more KV is used than there is.
    """
    ranks = ranks_of(body)
    running, waiting = total(ranks, "num_running_reqs"), total(ranks, "num_waiting_reqs")
    used, capacity = total(ranks, "num_used_tokens"), total(ranks, "max_total_num_tokens")
    uncached = total(ranks, "num_waiting_uncached_tokens", 0)
    if capacity == 0 or used > capacity:
        raise Unreadable("reports more KV in use than it has")
    return ReplicaReading(
        in_flight=max(running + waiting, 1 if used + uncached else 0),
        queued=waiting,
        kv_used_tokens=used,
        kv_total_tokens=capacity,
        idle=running + waiting + used + uncached == 0,
    )
