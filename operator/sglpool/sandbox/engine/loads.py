"""The body of /v1/loads: what an engine holds and queues, as its last snapshot shows it.

Works without --enable-metrics. Not here: when a snapshot is taken (every 15 decode steps, each prefill batch, idle at
once): that is the engine model's `published`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglpool.enginemodel.engine import Engine
    from sglpool.sandbox.engine.spec import Spec
    from sglpool.sandbox.engine.telemetry import Telemetry

SECTIONS = ("all", "core", "disagg", "lora", "memory", "queues", "spec")
JSON_TYPE = "application/json"
TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECTION_OF = {"memory": "memory", "speculative": "spec", "disaggregation": "disagg", "queues": "queues"}
_SHORT = {"speculative": "spec", "disaggregation": "disagg"}

Answer = tuple[int, str, bytes]
"""Status, content type, body."""


def answer(
    spec: Spec, engine: Engine, telemetry: Telemetry, query: Mapping[str, str], *, now_s: float, unix_s: float
) -> Answer:
    """Answer one GET.

    Args:
        spec: The engine's settings.
        engine: The engine model.
        telemetry: For the sums over decode steps.
        query: Decoded query parameters: include, dp_rank, format.
        now_s: Model time.
        unix_s: The same moment by the wall clock.
    """
    rank = query.get("dp_rank", "")
    if rank and not rank.lstrip("+-").isdigit():
        return 422, JSON_TYPE, _json(_not_an_integer(rank))
    wanted = {part.strip() for part in query["include"].split(",")} if query.get("include") else {"all"}
    unknown = sorted(wanted - set(SECTIONS))
    if unknown:
        names = ", ".join(repr(name) for name in unknown)
        detail = f"Invalid include sections: {{{names}}}. Valid options: {list(SECTIONS)}"
        return 400, JSON_TYPE, _json({"detail": detail})
    loads = [] if rank and int(rank) != 0 else [_load(spec, engine, telemetry, now_s=now_s, unix_s=unix_s)]
    loads = [_include(load, wanted) for load in loads]
    if query.get("format") == "prometheus":
        return 200, TEXT_TYPE, _prometheus(loads)
    body = {
        "timestamp": datetime.fromtimestamp(unix_s, UTC).isoformat(),
        "version": spec.version,
        "accelerator": spec.machine.accelerator,
        "num_accelerators": spec.tensor_parallel_size,
        "loads": loads,
    }
    return 200, JSON_TYPE, _json(body)


def _load(spec: Spec, engine: Engine, telemetry: Telemetry, *, now_s: float, unix_s: float) -> dict[str, Any]:
    """The one rank's snapshot, in the order of the real body."""
    load = engine.published
    capacity_tokens = spec.capacity.token_capacity
    idle = engine.next_event_s() is None
    # Idle snapshots are taken all the time, so theirs is now.
    taken_s = unix_s if idle else unix_s - max(0.0, now_s - load.at_s) / spec.machine.speed
    return {
        "timestamp": taken_s,
        "dp_rank": 0,
        "num_running_reqs": load.running,
        "num_waiting_reqs": load.waiting,
        "num_waiting_uncached_tokens": load.waiting_uncached_tokens,
        "num_used_tokens": load.used_tokens,
        "num_total_tokens": load.total_tokens,
        "num_active_tokens": load.total_tokens,
        "num_prealloc_ready_tokens": 0,
        "max_total_num_tokens": capacity_tokens,
        "max_running_requests": spec.engine.max_running_requests,
        "token_usage": round(load.token_usage, 4),
        "gen_throughput": round(load.gen_throughput, 2),
        "cache_hit_rate": round(load.cache_hit_rate, 4),
        "utilization": 0.0,
        "total_prefill_uncached_tokens": load.total_prefill_uncached_tokens,
        "total_prefill_busy_us": load.total_prefill_busy_us,
        "decode_moments": telemetry.decode_moments,
        "memory": {
            "weight_gb": round(spec.capacity.weight_gb, 3),
            "kv_cache_gb": round(spec.capacity.kv_cache_gb, 3),
            "graph_gb": round(spec.capacity.graph_gb, 3),
            "token_capacity": capacity_tokens,
        },
        **_speculative(telemetry),
        "disaggregation": {
            "mode": "null",
            "prefill_bootstrap_queue_reqs": 0,
            "prefill_inflight_queue_reqs": 0,
            "decode_prealloc_queue_reqs": 0,
            "decode_transfer_queue_reqs": 0,
            "decode_retracted_queue_reqs": 0,
            "kv_transfer_speed_gb_s": 0.0,
            "kv_transfer_latency_ms": 0.0,
        },
        "queues": {
            "waiting": load.waiting,
            "grammar": 0,
            "paused": 0,
            "retracted": load.retracted,
            "prealloc_ready": 0,
        },
    }


def _speculative(telemetry: Telemetry) -> dict[str, Any]:
    """Only with a draft, and only once it has been reported."""
    accept_length = telemetry.accept_length()
    if accept_length is None:
        return {}
    rate = telemetry.store.get("spec_accept_rate")
    return {"speculative": {"accept_length": accept_length, "accept_rate": rate}}


def _include(load: dict[str, Any], wanted: set[str]) -> dict[str, Any]:
    """The core fields always, sections as asked for."""
    if "all" in wanted:
        return load
    return {key: value for key, value in load.items() if key not in _SECTION_OF or _SECTION_OF[key] in wanted}


def _prometheus(loads: list[dict[str, Any]]) -> bytes:
    """The same numbers as gauges; these names have an underscore where /metrics has a colon."""
    lines = []
    for load in loads:
        rank = load["dp_rank"]
        for name, value in _samples(load):
            lines += [f"# TYPE sglang_{name} gauge", f'sglang_{name}{{dp_rank="{rank}"}} {value}']
    return ("\n".join(lines) + "\n").encode()


def _samples(load: Mapping[str, Any]) -> list[tuple[str, float]]:
    samples: list[tuple[str, float]] = []
    for key, value in load.items():
        if isinstance(value, dict):
            prefix = _SHORT.get(key, key)
            samples += [(f"{prefix}_{name}", part) for name, part in value.items() if isinstance(part, int | float)]
        elif key != "dp_rank" and isinstance(value, int | float):
            samples.append((key, value))
    return samples


def _not_an_integer(text: str) -> dict[str, Any]:
    """What the web framework under SGLang says to a parameter of the wrong type."""
    message = "Input should be a valid integer, unable to parse string as an integer"
    return {"detail": [{"type": "int_parsing", "loc": ["query", "dp_rank"], "msg": message, "input": text}]}


def _json(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
