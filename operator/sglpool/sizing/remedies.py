"""Finds what would fit when a replica does not.

A remedy is never guessed: every one is a changed request that was sized with the same code and is feasible. One
change is tried first, then two; the smallest number of changes that works is what the user reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from sglpool.catalog import GPUType, element_bytes
from sglpool.sizing import host
from sglpool.sizing.host import GB
from sglpool.sizing.text import tokens
from sglpool.sizing.types import Fit, HiCacheRequest, Reason, Remedy, SizingRequest

TENSOR_PARALLEL_SIZES = (1, 2, 4, 8)

#: The highest memory fraction that is suggested, in percent: above it, graphs and activations have run short.
MAX_MEM_FRACTION_PERCENT = 92

#: The shortest context that is worth suggesting, and the step it is rounded down to, in tokens.
MIN_CONTEXT_TOKENS = 16_384
CONTEXT_STEP_TOKENS = 1_024

#: Most remedies that one message names.
MAX_REMEDIES = 4

Evaluate = Callable[[SizingRequest], Fit]

_HBM_REASONS = frozenset({Reason.WEIGHTS_EXCEED_HBM, Reason.KV_CAPACITY_EXCEEDED})


@dataclass(frozen=True, slots=True)
class _Case:
    """A request that does not fit, how it does not, and what a change may use."""

    request: SizingRequest
    fit: Fit
    evaluate: Evaluate
    other_gpus: tuple[GPUType, ...]

    def passes_hbm(self, request: SizingRequest) -> bool:
        """Whether the GPU's side of a changed request is right; its host memory may still be too small."""
        reason = self.evaluate(request).reason
        return reason in (Reason.FITS_HBM, Reason.HICACHE_TOO_SMALL, Reason.HOST_MEMORY_EXCEEDED)


def find_remedies(
    request: SizingRequest, fit: Fit, *, evaluate: Evaluate, other_gpus: tuple[GPUType, ...]
) -> tuple[Remedy, ...]:
    """Return the changes that make a request fit: single ones, else pairs; empty if neither does.

    Args:
        request: the request that does not fit.
        fit: its evaluation.
        evaluate: sizes a request.
        other_gpus: GPU types that a remedy may name instead.
    """
    first = list(_changes(_Case(request, fit, evaluate, other_gpus)))
    found = [change for change in first if evaluate(change.request).feasible]
    if not found:
        found = list(_pairs(first, evaluate, other_gpus))
    return tuple(found[:MAX_REMEDIES])


def _pairs(first: list[Remedy], evaluate: Evaluate, other_gpus: tuple[GPUType, ...]) -> Iterator[Remedy]:
    """Follow each change that was not enough with a second one; the first that is enough is taken."""
    for change in first:
        case = _Case(change.request, evaluate(change.request), evaluate, other_gpus)
        for second in _changes(case):
            if evaluate(second.request).feasible:
                yield Remedy(f"{change.text} with {second.text}", second.request)
                break


def _changes(case: _Case) -> Iterator[Remedy]:
    """Single changes that may help against the case's reason, the least drastic first."""
    reason = case.fit.reason
    if reason is Reason.KV_DTYPE_REFUSED:
        yield from _accepted_dtypes(case)
    elif reason is Reason.CONTEXT_EXCEEDS_MODEL:
        limit = case.request.model.max_context_tokens
        yield Remedy(f"model.contextLength {limit}", replace(case.request, context_tokens=limit))
    elif reason is Reason.GPUS_PER_NODE_EXCEEDED:
        yield from _smaller_tensor_parallel(case)
    elif reason in _HBM_REASONS:
        yield from _more_hbm(case)
    elif reason is Reason.HICACHE_TOO_SMALL:
        yield from _larger_hicache(case)
    elif reason is Reason.HOST_MEMORY_EXCEEDED:
        yield from _less_host_memory(case)


def _more_hbm(case: _Case) -> Iterator[Remedy]:
    yield from _fewer_requests(case)
    yield from _higher_fraction(case)
    yield from _narrower_dtype(case)
    yield from _larger_tensor_parallel(case)
    yield from _other_gpu(case)
    yield from _without_draft(case)
    yield from _shorter_context(case)


def _fewer_requests(case: _Case) -> Iterator[Remedy]:
    request = case.request
    target = case.fit.kv_tokens // request.tokens_per_request
    if request.target_running_requests is None or not 1 <= target < request.target_running_requests:
        return
    yield Remedy(f"targetRunningRequests {target}", replace(request, target_running_requests=target))


def _higher_fraction(case: _Case) -> Iterator[Remedy]:
    start = case.request.mem_fraction_percent + 1
    changed = None
    for percent in range(start, MAX_MEM_FRACTION_PERCENT + 1):
        changed = replace(case.request, mem_fraction_percent=percent)
        if case.passes_hbm(changed):
            break
    if changed is not None:
        yield Remedy(f"memFractionStaticPercent {changed.mem_fraction_percent}", changed)


def _narrower_dtype(case: _Case) -> Iterator[Remedy]:
    request = case.request
    width = element_bytes(request.kv_dtype)
    for dtype in request.gpu.kv_dtypes.get(request.model.attention, ()):
        if element_bytes(dtype) < width:
            yield Remedy(f"kvCache.dtype {dtype} instead of {request.kv_dtype}", replace(request, kv_dtype=dtype))


def _larger_tensor_parallel(case: _Case) -> Iterator[Remedy]:
    request = case.request
    changed = None
    for size in TENSOR_PARALLEL_SIZES:
        if request.tensor_parallel_size < size <= request.gpu.gpus_per_node:
            changed = replace(request, tensor_parallel_size=size)
            if case.passes_hbm(changed):
                break
    if changed is not None:
        yield Remedy(f"tensorParallelSize {changed.tensor_parallel_size}", changed)


def _smaller_tensor_parallel(case: _Case) -> Iterator[Remedy]:
    request = case.request
    sizes = [size for size in TENSOR_PARALLEL_SIZES if size <= request.gpu.gpus_per_node]
    if sizes:
        yield Remedy(f"tensorParallelSize {sizes[-1]}", replace(request, tensor_parallel_size=sizes[-1]))
    yield from _other_gpu(case)


def _other_gpu(case: _Case) -> Iterator[Remedy]:
    for gpu in case.other_gpus:
        if gpu.name != case.request.gpu.name:
            # What was seen on nodes of one type says nothing about those of another.
            changed = replace(case.request, gpu=gpu, node_memory_bytes=None)
            yield Remedy(f"GPU type {gpu.name}", changed)


def _without_draft(case: _Case) -> Iterator[Remedy]:
    if case.request.draft is not None:
        yield Remedy("no speculative decoding", replace(case.request, draft=None))


def _shorter_context(case: _Case) -> Iterator[Remedy]:
    context = case.fit.kv_tokens // CONTEXT_STEP_TOKENS * CONTEXT_STEP_TOKENS
    if MIN_CONTEXT_TOKENS <= context < case.request.context_tokens:
        text = f"model.contextLength {context} (at most {tokens(case.fit.kv_tokens)})"
        yield Remedy(text, replace(case.request, context_tokens=context))


def _accepted_dtypes(case: _Case) -> Iterator[Remedy]:
    request = case.request
    accepted = request.gpu.kv_dtypes.get(request.model.attention, ())
    if request.kv_dtype not in accepted:
        for dtype in accepted:
            yield Remedy(f"kvCache.dtype {dtype}", replace(request, kv_dtype=dtype))
    elif request.draft is not None:
        for dtype in request.gpu.kv_dtypes.get(request.draft.layout.kind, ()):
            changed = replace(request, draft=replace(request.draft, kv_dtype=dtype))
            yield Remedy(f"speculative.draftKVCacheDtype {dtype}", changed)


def _larger_hicache(case: _Case) -> Iterator[Remedy]:
    request = case.request
    tp = request.tensor_parallel_size
    least = host.hicache_size_for_gb(
        gb_per_rank=1,
        tensor_parallel_size=tp,
        target_bytes_per_token=request.model.layout.bytes_per_token_per_rank(request.kv_dtype, tp),
        all_bytes_per_token=case.fit.kv_bytes_per_token_per_gpu,
    )
    size_gb = -(-least // GB)
    yield Remedy(f"kvCache.hiCache.size {size_gb}G or more", _with_hicache(request, size_gb * GB))
    yield Remedy("no kvCache.hiCache", replace(request, hicache=None))


def _less_host_memory(case: _Case) -> Iterator[Remedy]:
    request, fit = case.request, case.fit
    if request.hicache is not None:
        yield from _smaller_hicache(case)
    limit = request.memory_limit_bytes
    needed = max(fit.host_memory_guard_bytes, fit.host_memory_request_bytes)
    if limit is not None and limit < needed:
        needed_gb = -(-needed // GB)
        changed = replace(request, memory_limit_bytes=needed_gb * GB)
        yield Remedy(f"a memory limit of {needed_gb}G or more", changed)
        yield Remedy("no memory limit", replace(request, memory_limit_bytes=None))
    if request.hicache is not None:
        yield Remedy("no kvCache.hiCache", replace(request, hicache=None))


def _smaller_hicache(case: _Case) -> Iterator[Remedy]:
    """The largest whole number of gigabytes that the node, and the limit if there is one, can hold."""
    request, fit = case.request, case.fit
    used = fit.host_overhead_bytes + fit.shm_bytes
    room = fit.node_memory_bytes // fit.replicas_per_node - used
    if request.memory_limit_bytes is not None:
        pool = host.largest_rank_pool_bytes(
            limit_bytes=request.memory_limit_bytes,
            used_bytes=used,
            tensor_parallel_size=request.tensor_parallel_size,
        )
        room = min(room, pool * request.tensor_parallel_size)
    if room >= GB:
        yield Remedy(f"kvCache.hiCache.size {room // GB}G", _with_hicache(request, room // GB * GB))


def _with_hicache(request: SizingRequest, size_bytes: int) -> SizingRequest:
    return replace(request, hicache=HiCacheRequest(size_bytes=size_bytes))
