"""What the GPUs and the host of a simulated engine hold, or why a rank dies before it could serve.

The arithmetic is `sizing`'s; what is added is what only a running engine has: bytes that are whole on every rank,
the derived running limit, CUDA graphs, and the order in which memory runs out. Not here: time and logs (`startup`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sglpool.catalog import GIB, GPUType, KVLayout, UnknownGPUType, load_catalog
from sglpool.catalog.layouts import ELEMENT_BYTES
from sglpool.sandbox.engine.machine import Machine
from sglpool.sandbox.engine.modelfiles import Weights
from sglpool.sandbox.engine.rules import LARGE_GPU_MIB, Resolved
from sglpool.sandbox.engine.spec import Capacity
from sglpool.sizing import hbm, host

#: SGLang's own memory fraction for a text model, where it was seen: read on an H200 with prefill graphs off, the
#: others on emulated GPUs. It leaves a vision model 9% less (0.778 and 0.82 seen).
_AUTO_FRACTIONS = {"H200": 0.907, "B200": 0.855, "B300": 0.901}
_AUTO_FRACTION = 0.85
_VISION_SHARE = 0.91

#: CUDA graphs, fitted to an H200: 0.13 GiB for 4 requests, 0.18 for 8, 2.68 for 256; 1.68 for prefills.
_GRAPH_BASE_GB = 0.10
_GRAPH_REQUEST_GB = 0.01
_PREFILL_GRAPH_GB = 1.68

#: Bytes of one element, scales included, of the dtypes that the catalogue does not hold (estimates).
_EXOTIC_ELEMENT_BYTES = {"mxfp8": 1 + 1 / 32, "nvfp4": 0.5 + 1 / 16, "fp4_mx_block16": 0.5 + 1 / 16}

#: SGLang derives the running limit from the pool, within these bounds (4096 and 2048 read).
_MIN_RUNNING, _MAX_RUNNING = 2048, 4096
_DEFAULT_HICACHE_RATIO = {"cache": 2.0, "buffer_only": 1.2}


class RankDied(Exception):
    """A rank ends with an exception, and takes the server with it.

    Attributes:
        kind: the name of the exception that SGLang shows.
        phase: "init", "load", "pool" or "graph": how far the start has come by then.
    """

    def __init__(self, kind: str, message: str, *, phase: str) -> None:
        self.kind = kind
        self.phase = phase
        super().__init__(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytes:
    """Bytes of one token on one rank.

    Attributes:
        target: the model's KV proper; also what one token takes in the host pool.
        pool: with the indexer's and the draft's.
    """

    target: int
    pool: int


def token_bytes(resolved: Resolved) -> Bytes:
    """What one token costs on one rank."""
    args, layout = resolved.args, resolved.model.layout
    ranks = args["tp_size"] // (args["attn_dp_size"] * args["attn_cp_size"])
    target = _layout_bytes(layout, args["kv_cache_dtype"], ranks)
    pool = target + layout.indexer_bytes_per_token_per_rank()
    draft = _draft_layout(resolved)
    if draft is not None:
        pool += _layout_bytes(draft, args["speculative_draft_kv_cache_dtype"], ranks)
        pool += draft.indexer_bytes_per_token_per_rank()
    stages = args["pp_size"]
    return Bytes(target=-(-target // stages), pool=-(-pool // stages))


def _layout_bytes(layout: KVLayout, dtype: str, ranks: int) -> int:
    if dtype in ELEMENT_BYTES:
        return layout.bytes_per_token_per_rank(dtype, ranks)
    share = _EXOTIC_ELEMENT_BYTES[dtype] / ELEMENT_BYTES["bf16"]
    return round(layout.bytes_per_token_per_rank("bf16", ranks) * share)


def _draft_layout(resolved: Resolved) -> KVLayout | None:
    algorithm = resolved.args["speculative_algorithm"]
    if algorithm in (None, "NGRAM"):
        return None
    # Without weights of its own the draft is one layer of the model.
    return resolved.draft.layout if resolved.draft else resolved.model.layout.one_layer()


def plan_capacity(resolved: Resolved, machine: Machine, weights: Weights, draft: Weights | None) -> Capacity:
    """Fill the GPUs, and the host's pool, as far as they go.

    Raises:
        RankDied: something does not fit, or is not there.
    """
    args = resolved.args
    gpu = _gpu(machine)
    needed = args["tp_size"] * args["pp_size"] * args["dp_size"] // args["nnodes"]
    if needed > machine.gpus:
        raise RankDied(
            "torch.AcceleratorError",
            f"CUDA error: invalid device ordinal (rank {machine.gpus} of {needed}, but the container has "
            f"{machine.gpus} GPUs)",
            phase="init",
        )
    per_token = token_bytes(resolved)
    free = hbm.free_before_load_bytes(gpu, args["tp_size"])
    weight_bytes = _weight_bytes(args, weights, draft)
    if weight_bytes > free:
        raise RankDied(
            "torch.OutOfMemoryError",
            f"CUDA out of memory. GPU 0 has a total capacity of {machine.gpu_memory_mib / 1024:.2f} GiB, the weights "
            f"of one rank take {weight_bytes / GIB:.2f} GiB.",
            phase="load",
        )
    fraction = args["mem_fraction_static"] or _auto_fraction(resolved, machine)
    tokens = _tokens(args, free, weight_bytes, fraction, per_token)
    running = _running_limit(args, tokens, resolved.context_tokens)
    table = hbm.request_table_bytes(max_running_requests=running, context_tokens=resolved.context_tokens)
    host_tokens = _host_tokens(args, machine, gpu, per_token, tokens)
    graph_gb = _graph_gb(args, machine, running)
    left_gb = (free - weight_bytes - tokens * per_token.pool - table) / GIB - graph_gb
    if left_gb < 0:
        raise RankDied(
            "Exception",
            "Capture cuda graph failed: CUDA out of memory. Possible solutions: 1. set --mem-fraction-static to a "
            "smaller value (e.g., 0.8 or 0.7) 2. set --cuda-graph-max-bs-decode to a smaller value",
            phase="graph",
        )
    return Capacity(
        weight_gb=weight_bytes / GIB,
        kv_cache_gb=tokens * per_token.pool / GIB,
        graph_gb=graph_gb,
        token_capacity=tokens,
        host_tokens=host_tokens,
        host_gb=host_tokens * per_token.target / host.GB,
        kv_bytes_per_token=per_token.target,
        pool_bytes_per_token=per_token.pool,
        page_size_tokens=args["page_size"],
        startup_available_gpu_memory_gb=free / GIB,
        available_gpu_memory_gb=left_gb,
        max_running_requests=running,
        request_table_gb=table / GIB,
    )


def _gpu(machine: Machine) -> GPUType:
    """The catalogue's figures of the type, on the machine's own memory; an unknown type behaves as the one measured."""
    catalog = load_catalog()
    try:
        gpu = catalog.gpu(machine.gpu_type)
    except UnknownGPUType:
        gpu = next(gpu for gpu in catalog.gpus if gpu.measured)
    return replace(gpu, memory_mib=machine.gpu_memory_mib)


def _weight_bytes(args: dict[str, Any], weights: Weights, draft: Weights | None) -> int:
    shards = args["tp_size"] * args["pp_size"]
    return weights.rank_bytes(shards) + (draft.rank_bytes(args["tp_size"]) if draft else 0)


def _auto_fraction(resolved: Resolved, machine: Machine) -> float:
    fraction = _AUTO_FRACTIONS.get(machine.gpu_type, _AUTO_FRACTION)
    return round(fraction * _VISION_SHARE, 3) if resolved.model.vision else fraction


def _tokens(args: dict[str, Any], free: int, weight_bytes: int, fraction: float, per_token: Bytes) -> int:
    pool = hbm.kv_pool_bytes(free_bytes=free, mem_fraction_percent=fraction * 100, weight_bytes=weight_bytes)
    tokens = hbm.kv_tokens(pool, per_token.pool)
    if args["max_total_tokens"] is not None:
        tokens = min(tokens, args["max_total_tokens"])
    page: int = args["page_size"]
    tokens = tokens // page * page
    if tokens <= 0:
        raise RankDied("RuntimeError", "Not enough memory. Please try to increase --mem-fraction-static.", phase="pool")
    return tokens


def _running_limit(args: dict[str, Any], tokens: int, context_tokens: int) -> int:
    """The flag, else what SGLang derives from the pool."""
    given: int | None = args["max_running_requests"]
    ranks: int = args["attn_dp_size"]
    if given is not None:
        return max(1, given // ranks)
    return min(max(tokens * 512 // context_tokens, _MIN_RUNNING), _MAX_RUNNING) // ranks


def _host_tokens(args: dict[str, Any], machine: Machine, gpu: GPUType, per_token: Bytes, tokens: int) -> int:
    """Tokens of the HiCache pool. The engine takes the whole pages below the size, and one more (read)."""
    if not args["enable_hierarchical_cache"] or args["hicache_host_memory_mode"] == "buffer_only":
        return 0
    ranks, page = args["tp_size"], args["page_size"]
    memory = machine.memory_bytes or gpu.node_memory_bytes
    used = host.host_overhead_bytes(ranks)
    if args["hicache_size"] > 0:
        wanted = args["hicache_size"] * host.GB // per_token.target
    else:
        ratio = args["hicache_ratio"] or _DEFAULT_HICACHE_RATIO["cache"]
        wanted = int(tokens * ratio)
        if args["hicache_ratio"] is None:
            budget = int(args["hicache_host_memory_fraction"] * max(0, memory - used - host.GUARD_RESERVE_BYTES))
            wanted = min(wanted, budget // (ranks * per_token.pool))
    held: int = (wanted // page + 1) * page
    rank_bytes = held * per_token.pool
    if memory < host.guard_bytes(used_bytes=used, rank_pool_bytes=rank_bytes, tensor_parallel_size=ranks):
        free = max(0, memory - used - host.GUARD_RESERVE_BYTES - (ranks - 1) * rank_bytes)
        raise RankDied(
            "ValueError",
            f"Not enough host memory available. Requesting {rank_bytes / host.GB:.2f} GB but only have "
            f"{free / ranks / host.GB:.2f} GB free. Please reduce the size of the hierarchical cache.",
            phase="pool",
        )
    return held


def graph_requests(args: dict[str, Any], machine: Machine, running: int) -> int:
    """The largest batch that has a CUDA graph; 0 without graphs."""
    if args["disable_cuda_graph"] or args.get("disable_decode_cuda_graph"):
        return 0
    most = args["cuda_graph_max_bs_decode"] or (512 if machine.gpu_memory_mib >= LARGE_GPU_MIB else 256)
    return min(int(most), running)


def has_prefill_graphs(args: dict[str, Any]) -> bool:
    """Whether prefills have CUDA graphs too, which is SGLang's default."""
    return not (args["disable_cuda_graph"] or args.get("disable_prefill_cuda_graph"))


def _graph_gb(args: dict[str, Any], machine: Machine, running: int) -> float:
    requests = graph_requests(args, machine, running)
    decode = _GRAPH_BASE_GB + _GRAPH_REQUEST_GB * requests if requests else 0.0
    return decode + (_PREFILL_GRAPH_GB if has_prefill_graphs(args) else 0.0)
