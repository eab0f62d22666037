"""The arithmetic of a fit as tables that a person can follow from top to bottom."""

from __future__ import annotations

from sglpool.sizing.host import GUARD_RESERVE_BYTES
from sglpool.sizing.text import gigabytes, tokens
from sglpool.sizing.types import AUTO, Fit, Line, SizingRequest


def hbm_lines(request: SizingRequest, fit: Fit) -> tuple[Line, ...]:
    """One GPU: from what nvidia-smi reports to the KV pool. The lines add up to the last."""
    gpu, tp = request.gpu, fit.tensor_parallel_size
    checkpoint = gigabytes(request.model.checkpoint_bytes)
    lines = [
        Line("GPU memory", gpu.memory_bytes, f"{gpu.name}, {gpu.memory_mib:,} MiB by nvidia-smi"),
        Line("CUDA context", -gpu.context_bytes, "read" if gpu.measured else "estimate"),
    ]
    if tp > 1:
        lines.append(Line("NCCL", -gpu.nccl_bytes, "read" if gpu.measured else "estimate"))
    outside = f"{100 - request.mem_fraction_percent}% of {gigabytes(fit.free_before_load_bytes)} free before the load"
    lines += [
        Line("graphs and activations", -fit.outside_fraction_bytes, outside),
        Line("weights", -fit.weight_bytes_per_gpu, f"{checkpoint} / {tp}"),
    ]
    if request.draft is not None:
        draft = gigabytes(request.draft.checkpoint_bytes)
        shared = f"{draft} / {tp}" if request.draft.sharded else f"{draft} on every GPU"
        lines.append(Line("draft weights", -fit.draft_weight_bytes_per_gpu, shared))
    held = f"{tokens(fit.kv_tokens)} tokens of {tokens(fit.kv_bytes_per_token_per_gpu)} B"
    band = f"estimate {tokens(fit.kv_tokens_low)} to {tokens(fit.kv_tokens_high)}"
    lines.append(Line("KV pool", fit.kv_pool_bytes_per_gpu, f"{held} ({band})"))
    return tuple(lines)


def host_lines(request: SizingRequest, fit: Fit) -> tuple[Line, ...]:
    """One replica: the parts of its memory request, their sum, and what to compare it with."""
    tp = fit.tensor_parallel_size
    lines = []
    if request.hicache is not None:
        size = gigabytes(fit.hicache_size_bytes)
        asked = f"Auto: {size}" if request.hicache.size_bytes is AUTO else f"size {size}"
        flag = f"{tp} x --hicache-size {fit.hicache_size_gb_per_rank}"
        held = f"{tokens(fit.host_kv_tokens)} tokens"
        lines.append(Line("HiCache pools", fit.hicache_total_bytes, f"{asked}, {flag}, {held}"))
    lines += [
        Line("engine processes", fit.host_overhead_bytes, f"{tp} ranks"),
        Line("/dev/shm", fit.shm_bytes, "counts in the pod's memory"),
        Line("memory request", fit.host_memory_request_bytes, "sum, one replica"),
        Line(
            "memory of a node",
            fit.node_memory_bytes,
            f"{fit.replicas_per_node} x {gigabytes(fit.host_memory_request_bytes)} must fit",
        ),
        Line(
            "least memory limit",
            fit.host_memory_guard_bytes,
            f"SGLang's guard: {gigabytes(GUARD_RESERVE_BYTES)} and {2 * tp - 1} pools beside the rest"
            if fit.hicache_total_bytes
            else "no pools, so no guard",
        ),
    ]
    return tuple(lines)
