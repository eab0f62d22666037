"""The body of /server_info: resolved flags, sizes, start times, and that all of this is simulated.

Not here: live load; `max_running_requests` at the top is the flag and null when unset, the number in force is in
`internal_states[0].effective_max_running_requests_per_dp`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglpool.sandbox.engine.spec import Spec
    from sglpool.sandbox.engine.telemetry import Telemetry

_PHASES = ("prefill", "decode", "target_verify", "draft_prefill", "draft_decode", "draft_extend")


def body(spec: Spec, telemetry: Telemetry, simulation: Mapping[str, Any]) -> bytes:
    """Answer one GET.

    Args:
        spec: The engine's settings.
        telemetry: For throughput and accept length.
        simulation: What the driver says of itself: lag_s, speed, and so on.
    """
    flags = {name: _plain(value) for name, value in spec.args.items()}
    startup_time = _startup_time(spec)
    top: dict[str, Any] = {
        **flags,
        "launch_command": spec.launch_command,
        "status": "ready",
        "max_total_num_tokens": spec.capacity.token_capacity,
        "max_req_input_len": spec.max_req_input_len_tokens,
        "startup_time": startup_time,
        "hicache_object_layout": None,
        "kv_events": None,
        "internal_states": [
            {**flags, **_internal_state(spec, telemetry, startup_time), "simulation": dict(simulation)}
        ],
        "version": spec.version,
        "frontend": "python",
        "simulated": True,
    }
    return json.dumps(top, separators=(",", ":")).encode()


def _internal_state(spec: Spec, telemetry: Telemetry, startup_time: Mapping[str, Any]) -> dict[str, Any]:
    capacity = spec.capacity
    state: dict[str, Any] = {
        "world_size": spec.tensor_parallel_size,
        "startup_time": startup_time,
        "effective_max_running_requests_per_dp": spec.engine.max_running_requests,
        "last_gen_throughput": telemetry.store.get("gen_throughput"),
        "memory_usage": {
            "weight": round(capacity.weight_gb, 3),
            "kvcache": round(capacity.kv_cache_gb, 3),
            "startup_available": round(capacity.available_gpu_memory_gb, 3),
            "token_capacity": capacity.token_capacity,
            "token_capacity_swa": None,
            "graph": _by_phase(round(capacity.graph_gb, 3)),
        },
        "disaggregation_mode": "null",
    }
    accept_length = telemetry.accept_length()
    if accept_length is not None:
        state["avg_spec_accept_length"] = accept_length
    return state


def _startup_time(spec: Spec) -> dict[str, Any]:
    startup = spec.startup
    return {
        "load_weight": startup.load_weight_s,
        "kv_cache_allocation": startup.kv_cache_allocation_s,
        "scheduler_e2e": startup.scheduler_e2e_s,
        "cuda_graph": _by_phase(startup.cuda_graph_s),
        "tokenizer_e2e": startup.scheduler_e2e_s,
    }


def _by_phase(decode: float) -> dict[str, float]:
    """All of it is decode's: the model has no other graphs."""
    return {phase: decode if phase == "decode" else 0.0 for phase in _PHASES}


def _plain(value: Any) -> Any:
    """A flag's value as JSON has it."""
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(part) for part in value]
    return str(value)
