"""Sizes one replica: memory of its GPUs, memory of its host, and whether it may start.

`size` is the entry point. The checks run in a fixed order and the first that fails names the reason; what would
fit instead is found by `remedies`, by sizing changed requests with the same code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sglpool.catalog import GPUType, KVLayout
from sglpool.sizing import hbm, host, text
from sglpool.sizing.remedies import find_remedies
from sglpool.sizing.tables import hbm_lines, host_lines
from sglpool.sizing.types import Fit, HiCacheSize, Reason, SizingRequest

#: Share of the KV tokens that a derived target plans with; the rest is for requests longer than the average.
TARGET_SHARE_PERCENT = 90


def size(request: SizingRequest, *, other_gpus: Iterable[GPUType] = ()) -> Fit:
    """Size a replica, and if it does not fit, say what would.

    Args:
        request: the replica.
        other_gpus: GPU types that a remedy may name instead.
    """
    fit = evaluate(request)
    if fit.feasible:
        return fit
    remedies = find_remedies(request, fit, evaluate=evaluate, other_gpus=tuple(other_gpus))
    if remedies:
        advice = f"This would fit: {'; or '.join(remedy.text for remedy in remedies)}."
    else:
        advice = "No change of one or two settings makes it fit on one node: take a smaller checkpoint."
    return replace(fit, message=f"{fit.message} {advice}", remedies=remedies)


def evaluate(request: SizingRequest) -> Fit:
    """Size a replica without looking for remedies; the message only says what is wrong."""
    fit = _figures(request)
    reason, message = _verdict(request, fit)
    fit = replace(fit, feasible=reason is Reason.FITS_HBM, reason=reason, message=message)
    return replace(fit, hbm_lines=hbm_lines(request, fit), host_lines=host_lines(request, fit))


@dataclass(frozen=True, slots=True)
class _TokenBytes:
    """Bytes of one token on one rank; all zero if a dtype is refused, because then nobody knows them."""

    target: int
    every: int


def _token_bytes(request: SizingRequest) -> _TokenBytes:
    if _refused_dtypes(request):
        return _TokenBytes(0, 0)
    size_ = request.tensor_parallel_size
    layout = request.model.layout
    target = layout.bytes_per_token_per_rank(request.kv_dtype, size_)
    every = target + layout.indexer_bytes_per_token_per_rank()
    if request.draft is not None:
        draft = request.draft.layout
        every += draft.bytes_per_token_per_rank(request.draft.kv_dtype, size_)
        every += draft.indexer_bytes_per_token_per_rank()
    return _TokenBytes(target, every)


def _refused_dtypes(request: SizingRequest) -> list[tuple[str, str, KVLayout]]:
    """The field, dtype and layout of each KV dtype that the GPU's attention kernels refuse."""
    asked = [("kvCache.dtype", request.kv_dtype, request.model.layout)]
    if request.draft is not None:
        asked.append(("speculative.draftKVCacheDtype", request.draft.kv_dtype, request.draft.layout))
    return [(field, dtype, layout) for field, dtype, layout in asked if not request.gpu.accepts(layout.kind, dtype)]


def _draft_weight_bytes(request: SizingRequest) -> int:
    draft = request.draft
    if draft is None:
        return 0
    return hbm.sharded_bytes(draft.checkpoint_bytes, request.tensor_parallel_size if draft.sharded else 1)


@dataclass(frozen=True, slots=True)
class _Gpu:
    """One GPU: what is free, what the weights take, and the KV pool with the error band of its tokens."""

    free_bytes: int
    outside_bytes: int
    weight_bytes: int
    draft_bytes: int
    pool_bytes: int
    tokens: int
    low: int
    high: int


def _gpu(request: SizingRequest, bytes_per_token: int) -> _Gpu:
    tp, model, percent = request.tensor_parallel_size, request.model, request.mem_fraction_percent
    free = hbm.free_before_load_bytes(request.gpu, tp)
    weights = hbm.sharded_bytes(model.checkpoint_bytes, tp)
    draft = _draft_weight_bytes(request)
    pool = hbm.kv_pool_bytes(
        free_bytes=free, mem_fraction_percent=percent, weight_bytes=weights, draft_weight_bytes=draft
    )
    margin = hbm.MEASURED_MARGIN_BYTES if request.gpu.measured else hbm.ESTIMATED_MARGIN_BYTES
    # What is whole on every rank was counted as if it were shared: a rank really holds (tp - 1)/tp of it more.
    low = pool - margin - model.replicated_bytes_high * (tp - 1) // tp
    high = pool + max(0, margin - model.replicated_bytes_low * (tp - 1) // tp)
    held = [0 if bytes_per_token == 0 else hbm.kv_tokens(size_, bytes_per_token) for size_ in (pool, low, high)]
    outside = free - hbm.static_bytes(free_bytes=free, mem_fraction_percent=percent)
    return _Gpu(free, outside, weights, draft, pool, *held)


@dataclass(frozen=True, slots=True)
class _Host:
    """The host's side of a replica: the cache that was asked for, the engine's flag, and what it all takes."""

    node_bytes: int
    size_bytes: int
    gb_per_rank: int
    pool_bytes: int
    tokens: int
    overhead_bytes: int
    shm_bytes: int
    guard_bytes: int


def _host(request: SizingRequest, per_token: _TokenBytes) -> _Host:
    tp = request.tensor_parallel_size
    node = request.gpu.node_memory_bytes if request.node_memory_bytes is None else request.node_memory_bytes
    size_bytes = gb = rank_bytes = held = 0
    if request.hicache is not None and per_token.target > 0:
        size_bytes = _cache_size_bytes(request, request.hicache.size_bytes, node)
        gb = host.hicache_gb_per_rank(
            size_bytes=size_bytes,
            tensor_parallel_size=tp,
            target_bytes_per_token=per_token.target,
            all_bytes_per_token=per_token.every,
        )
        rank_bytes = host.hicache_rank_bytes(
            gb_per_rank=gb, target_bytes_per_token=per_token.target, all_bytes_per_token=per_token.every
        )
        held = host.host_kv_tokens(gb_per_rank=gb, target_bytes_per_token=per_token.target)
    overhead, shm = host.host_overhead_bytes(tp), host.shm_bytes(tp)
    guard = host.guard_bytes(used_bytes=overhead + shm, rank_pool_bytes=rank_bytes, tensor_parallel_size=tp)
    return _Host(node, size_bytes, gb, rank_bytes * tp, held, overhead, shm, guard)


def _cache_size_bytes(request: SizingRequest, asked: int | HiCacheSize, node_memory_bytes: int) -> int:
    if not isinstance(asked, HiCacheSize):
        return asked
    return host.auto_hicache_bytes(
        node_memory_bytes=node_memory_bytes,
        gpus_per_node=request.gpu.gpus_per_node,
        tensor_parallel_size=request.tensor_parallel_size,
    )


def target_running_requests(request: SizingRequest, kv_tokens: int) -> int:
    """Running requests to aim for: the explicit number, else 90% of the KV, at least 1, at most the limit."""
    if request.target_running_requests is not None:
        return request.target_running_requests
    derived = kv_tokens * TARGET_SHARE_PERCENT // (100 * request.tokens_per_request)
    return max(1, min(derived, request.max_running_requests))


def _figures(request: SizingRequest) -> Fit:
    """Compute every figure; the verdict and the tables are added later."""
    tp = request.tensor_parallel_size
    per_token = _token_bytes(request)
    gpu, node = _gpu(request, per_token.every), _host(request, per_token)
    return Fit(
        gpu_type=request.gpu.name,
        tensor_parallel_size=tp,
        gpus_per_replica=tp,
        weight_bytes_per_gpu=gpu.weight_bytes,
        draft_weight_bytes_per_gpu=gpu.draft_bytes,
        free_before_load_bytes=gpu.free_bytes,
        outside_fraction_bytes=gpu.outside_bytes,
        request_table_bytes=hbm.request_table_bytes(
            max_running_requests=request.max_running_requests, context_tokens=request.context_tokens
        ),
        kv_pool_bytes_per_gpu=gpu.pool_bytes,
        kv_bytes_per_token_per_gpu=per_token.every,
        kv_tokens=gpu.tokens,
        kv_tokens_low=gpu.low,
        kv_tokens_high=gpu.high,
        host_kv_tokens=node.tokens,
        hicache_size_bytes=node.size_bytes,
        hicache_size_gb_per_rank=node.gb_per_rank,
        hicache_total_bytes=node.pool_bytes,
        host_overhead_bytes=node.overhead_bytes,
        shm_bytes=node.shm_bytes,
        host_memory_request_bytes=node.pool_bytes + node.overhead_bytes + node.shm_bytes,
        host_memory_guard_bytes=node.guard_bytes,
        node_memory_bytes=node.node_bytes,
        replicas_per_node=max(1, request.gpu.gpus_per_node // tp),
        conversations_at_context=gpu.tokens // request.context_tokens,
        target_running_requests=target_running_requests(request, gpu.tokens),
    )


def _verdict(request: SizingRequest, fit: Fit) -> tuple[Reason, str]:
    """The first check that fails, or that all pass."""
    for check in (_check_types, _check_hbm, _check_host):
        problem = check(request, fit)
        if problem is not None:
            return problem
    return Reason.FITS_HBM, text.fits(request, fit)


def _check_types(request: SizingRequest, fit: Fit) -> tuple[Reason, str] | None:
    """What is wrong before any arithmetic: GPUs of a node, context of the model, KV dtypes."""
    gpu = request.gpu
    if fit.gpus_per_replica > gpu.gpus_per_node:
        return Reason.GPUS_PER_NODE_EXCEEDED, text.node_too_small(request)
    if 0 < request.model.max_context_tokens < request.context_tokens:
        return Reason.CONTEXT_EXCEEDS_MODEL, text.context_exceeds_model(request)
    for field, dtype, layout in _refused_dtypes(request):
        accepted = gpu.kv_dtypes.get(layout.kind, ())
        return Reason.KV_DTYPE_REFUSED, text.dtype_refused(request, field, dtype, layout.kind, accepted)
    return None


def _check_hbm(request: SizingRequest, fit: Fit) -> tuple[Reason, str] | None:
    if fit.kv_pool_bytes_per_gpu <= 0:
        return Reason.WEIGHTS_EXCEED_HBM, text.weights_exceed(request, fit)
    if fit.kv_tokens < request.context_tokens:
        return Reason.KV_CAPACITY_EXCEEDED, text.context_exceeds_kv(request, fit)
    explicit = request.target_running_requests
    if explicit is not None and explicit * request.tokens_per_request > fit.kv_tokens:
        return Reason.KV_CAPACITY_EXCEEDED, text.target_exceeds_kv(request, fit)
    return None


def _check_host(request: SizingRequest, fit: Fit) -> tuple[Reason, str] | None:
    if request.hicache is not None and fit.hicache_size_gb_per_rank == 0:
        return Reason.HICACHE_TOO_SMALL, text.hicache_too_small(request, fit)
    # Two replicas share an 8-GPU node at TP4: all that the node's GPUs can hold must fit its memory.
    if fit.host_memory_request_bytes * fit.replicas_per_node > fit.node_memory_bytes:
        return Reason.HOST_MEMORY_EXCEEDED, text.node_exceeded(request, fit)
    limit = request.memory_limit_bytes
    if limit is not None and limit < max(fit.host_memory_guard_bytes, fit.host_memory_request_bytes):
        return Reason.HOST_MEMORY_EXCEEDED, text.limit_exceeded(request, fit)
    return None
