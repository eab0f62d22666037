"""Numbers as people read them, and the sentences about a fit. No arithmetic beyond rounding."""

from __future__ import annotations

from collections.abc import Iterable

from sglpool.sizing.types import AUTO, Fit, SizingRequest


def gigabytes(value: int) -> str:
    """Bytes as decimal gigabytes with one digit, as model and GPU sizes are given: `148.8 GB`."""
    return f"{value / 1e9:,.1f} GB"


def tokens(value: int) -> str:
    """A number of tokens with separators: `262,144`."""
    return f"{value:,}"


def either(words: Iterable[str]) -> str:
    """Join words with commas and `or`."""
    *head, last = words
    return f"{', '.join(head)} or {last}" if head else last


def subject(request: SizingRequest) -> str:
    """Name what was sized: `kimi-k2.6-nvfp4 at tensorParallelSize 4 on B200`."""
    return f"{request.model.name} at tensorParallelSize {request.tensor_parallel_size} on {request.gpu.name}"


def fits(request: SizingRequest, fit: Fit) -> str:
    """Say what a feasible replica holds, and when the low end of the estimate would not do."""
    conversations = fit.conversations_at_context
    plural = "conversation" if conversations == 1 else "conversations"
    text = (
        f"{subject(request)} holds {tokens(fit.kv_tokens)} KV tokens a replica: {conversations} {plural} of "
        f"{tokens(request.context_tokens)} tokens, {fit.target_running_requests} running requests of "
        f"{tokens(request.tokens_per_request)}."
    )
    if fit.kv_tokens_low < request.context_tokens:
        text += (
            f" The estimate's low end, {tokens(fit.kv_tokens_low)}, would not hold one conversation of that "
            "length: leave more room, or wait for what the engine reports."
        )
    return text


def weights_exceed(request: SizingRequest, fit: Fit) -> str:
    """Say that the weights leave no memory for KV."""
    weights = fit.weight_bytes_per_gpu + fit.draft_weight_bytes_per_gpu
    static = fit.free_before_load_bytes - fit.outside_fraction_bytes
    return (
        f"{subject(request)} needs {gigabytes(weights)} of weights a GPU, but memory fraction "
        f"{request.mem_fraction_percent}% of {gigabytes(fit.free_before_load_bytes)} free is {gigabytes(static)}."
    )


def context_exceeds_kv(request: SizingRequest, fit: Fit) -> str:
    """Say that one conversation of full length does not fit."""
    return (
        f"{subject(request)} holds {tokens(fit.kv_tokens)} KV tokens a replica, fewer than one conversation of "
        f"contextLength {tokens(request.context_tokens)}."
    )


def target_exceeds_kv(request: SizingRequest, fit: Fit) -> str:
    """Say that the explicit target does not fit."""
    target = fit.target_running_requests
    return (
        f"{subject(request)} holds {tokens(fit.kv_tokens)} KV tokens a replica, but targetRunningRequests {target} of "
        f"{tokens(request.tokens_per_request)} tokens each need {tokens(target * request.tokens_per_request)}."
    )


def node_exceeded(request: SizingRequest, fit: Fit) -> str:
    """Say that the replicas of a node need more host memory than it has."""
    count = fit.replicas_per_node
    need = fit.host_memory_request_bytes * count
    sharing = f"and {count} replicas share a node: {gigabytes(need)}" if count > 1 else "alone on its node"
    return (
        f"{subject(request)} needs {gigabytes(fit.host_memory_request_bytes)} of host memory a replica "
        f"({gigabytes(fit.hicache_total_bytes)} of it HiCache), {sharing}, but pods of a {request.gpu.name} node "
        f"have {gigabytes(fit.node_memory_bytes)}."
    )


def limit_exceeded(request: SizingRequest, fit: Fit) -> str:
    """Say that the user's memory limit is below what SGLang's guard asks for."""
    limit = request.memory_limit_bytes or 0
    return (
        f"The memory limit of {gigabytes(limit)} is too small for {subject(request)}: it uses "
        f"{gigabytes(fit.host_memory_request_bytes)}, and SGLang's start-up guard, which counts pools of other ranks "
        f"twice, passes only from {gigabytes(fit.host_memory_guard_bytes)}."
    )


def hicache_too_small(request: SizingRequest, fit: Fit) -> str:
    """Say that the host cache comes to less than a gigabyte a rank."""
    ranks = request.tensor_parallel_size
    asked = (
        f"kvCache.hiCache.size Auto comes to {gigabytes(fit.hicache_size_bytes)} on a node with "
        f"{gigabytes(fit.node_memory_bytes)} for pods, which"
        if request.hicache is not None and request.hicache.size_bytes is AUTO
        else f"kvCache.hiCache.size {fit.hicache_size_bytes:,} bytes"
    )
    return (
        f"{asked} is under 1 GB of KV for each of the {ranks} ranks of {subject(request)}, and SGLang takes whole "
        "gigabytes a rank. The size is for the whole replica, draft and indexer pools included."
    )


def node_too_small(request: SizingRequest) -> str:
    """Say that a replica needs more GPUs than a node has."""
    return (
        f"tensorParallelSize {request.tensor_parallel_size} needs that many GPUs on one node, but a "
        f"{request.gpu.name} node has {request.gpu.gpus_per_node}."
    )


def context_exceeds_model(request: SizingRequest) -> str:
    """Say that the context is longer than the model's own limit."""
    return (
        f"contextLength {tokens(request.context_tokens)} is more than the "
        f"{tokens(request.model.max_context_tokens)} that {request.model.name} was made for; SGLang refuses to start."
    )


def dtype_refused(request: SizingRequest, field: str, dtype: str, kind: str, accepted: tuple[str, ...]) -> str:
    """Say that a KV dtype is not accepted, and which are."""
    if not accepted:
        return f"{field} {dtype}: the catalogue knows no KV dtype for {kind} attention on {request.gpu.name}."
    return (
        f"{field} {dtype} is refused by the {kind} attention kernels of {request.gpu.name}, which take "
        f"{either(accepted)}."
    )
