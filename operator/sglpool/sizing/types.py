"""What sizing is asked and what it answers.

Plain frozen values: nothing here computes. The fields of `Fit` are the figures that status, `sglpool plan` and
the renderer show, in bytes and tokens; names for JSON belong to the command line.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

from sglpool.catalog import DraftProfile, GPUType, KVLayout, ModelProfile


class HiCacheSize(Enum):
    """A HiCache size that is not a number."""

    AUTO = "Auto"


#: Take what the node can spare (`auto_hicache_bytes`).
AUTO = HiCacheSize.AUTO


class Reason(StrEnum):
    """Why a replica fits or does not; condition reasons use the same words."""

    FITS_HBM = "FitsHBM"
    KV_DTYPE_REFUSED = "KVDtypeRefused"
    CONTEXT_EXCEEDS_MODEL = "ContextExceedsModel"
    GPUS_PER_NODE_EXCEEDED = "GPUsPerNodeExceeded"
    WEIGHTS_EXCEED_HBM = "WeightsExceedHBM"
    KV_CAPACITY_EXCEEDED = "KVCapacityExceeded"
    HICACHE_TOO_SMALL = "HiCacheTooSmall"
    HOST_MEMORY_EXCEEDED = "HostMemoryExceeded"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRequest:
    """The draft model of a replica.

    Attributes:
        checkpoint_bytes: size of its weight files.
        sharded: True if the ranks split its weights.
        layout: its KV cache.
        kv_dtype: dtype of its KV cache.
    """

    checkpoint_bytes: int
    sharded: bool
    layout: KVLayout
    kv_dtype: str

    @classmethod
    def of(cls, profile: DraftProfile, kv_dtype: str | None = None) -> DraftRequest:
        """Take a draft from the catalogue, with its recommended KV dtype unless another is given."""
        return cls(
            checkpoint_bytes=profile.checkpoint_bytes,
            sharded=profile.sharded,
            layout=profile.layout,
            kv_dtype=kv_dtype or profile.kv_dtype,
        )

    @classmethod
    def next_n(cls, model: ModelProfile, kv_dtype: str) -> DraftRequest:
        """Take the model's own draft layer (NEXTN): its weights are in the checkpoint, its KV is one layer."""
        return cls(checkpoint_bytes=0, sharded=True, layout=model.layout.one_layer(), kv_dtype=kv_dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class HiCacheRequest:
    """Host cache of one replica: all ranks, draft and indexer pools included.

    Attributes:
        size_bytes: bytes of the whole replica, or AUTO.
    """

    size_bytes: int | HiCacheSize


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingRequest:
    """One GPU type of one pool.

    Attributes:
        gpu: the GPU type.
        model: the model.
        tensor_parallel_size: ranks of a replica, one GPU each.
        kv_dtype: dtype of the target's KV cache, as the engine's flag spells it.
        mem_fraction_percent: `--mem-fraction-static` in percent.
        draft: the draft model, or None.
        context_tokens: `--context-length`; one conversation of that length must fit.
        max_running_requests: the engine's running limit.
        tokens_per_request: what a running request holds on average.
        target_running_requests: running requests to aim for per replica, or None to derive it.
        hicache: host cache, or None.
        node_memory_bytes: allocatable memory seen on such nodes, or None to take the catalogue's.
        memory_limit_bytes: the memory limit that the user sets on the engine container, or None.
    """

    gpu: GPUType
    model: ModelProfile
    tensor_parallel_size: int
    kv_dtype: str
    mem_fraction_percent: int
    draft: DraftRequest | None = None
    context_tokens: int
    max_running_requests: int
    tokens_per_request: int
    target_running_requests: int | None = None
    hicache: HiCacheRequest | None = None
    node_memory_bytes: int | None = None
    memory_limit_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a memory table; parts taken away are negative, sums and results positive."""

    label: str
    bytes: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that makes the replica fit: in words, and as a request that was sized and is feasible."""

    text: str
    request: SizingRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What one replica of the request takes and holds. Figures of an infeasible one say by how much.

    Attributes:
        gpu_type: name of the GPU type.
        tensor_parallel_size: ranks of a replica.
        gpus_per_replica: the same number, as the scheduler sees it.
        weight_bytes_per_gpu: the model's weights on each GPU, shared evenly.
        draft_weight_bytes_per_gpu: the draft's weights on each GPU.
        free_before_load_bytes: GPU memory that is free when the engine starts to load.
        outside_fraction_bytes: what the memory fraction leaves for graphs and activations.
        request_table_bytes: the engine's request-to-token table, taken from outside the fraction.
        kv_pool_bytes_per_gpu: what is left for KV; negative if the weights alone are too large.
        kv_bytes_per_token_per_gpu: target, indexer and draft together.
        kv_tokens: tokens of KV that the replica holds in HBM.
        kv_tokens_low: least tokens by the error band (bytes whole on every rank, constants not yet measured).
        kv_tokens_high: most tokens by the error band.
        host_kv_tokens: tokens that HiCache holds (0 without).
        hicache_size_bytes: the host cache that the flag was derived from, Auto resolved (0 without).
        hicache_size_gb_per_rank: the value of `--hicache-size` (0 without).
        hicache_total_bytes: host memory that the pools of all ranks really take.
        host_overhead_bytes: host memory of the engine's processes.
        shm_bytes: the size of `/dev/shm`.
        host_memory_request_bytes: pools, overhead and `/dev/shm`: the container's memory request.
        host_memory_guard_bytes: the least memory limit that the engine's start-up guard accepts.
        node_memory_bytes: what a node is taken to have for pods.
        replicas_per_node: replicas that share a node's GPUs, and so its memory.
        conversations_at_context: conversations of full context length that fit in HBM at once.
        target_running_requests: running requests to aim for, given or derived.
        feasible: whether such a replica may be started.
        reason: why, in one word.
        message: why, in sentences; of an infeasible one also what would fit.
        remedies: the changes that the message names.
        hbm_lines: the arithmetic of a GPU's memory, top down.
        host_lines: the arithmetic of the host's memory, top down.
    """

    gpu_type: str
    tensor_parallel_size: int
    gpus_per_replica: int
    weight_bytes_per_gpu: int
    draft_weight_bytes_per_gpu: int
    free_before_load_bytes: int
    outside_fraction_bytes: int
    request_table_bytes: int
    kv_pool_bytes_per_gpu: int
    kv_bytes_per_token_per_gpu: int
    kv_tokens: int
    kv_tokens_low: int
    kv_tokens_high: int
    host_kv_tokens: int
    hicache_size_bytes: int
    hicache_size_gb_per_rank: int
    hicache_total_bytes: int
    host_overhead_bytes: int
    shm_bytes: int
    host_memory_request_bytes: int
    host_memory_guard_bytes: int
    node_memory_bytes: int
    replicas_per_node: int
    conversations_at_context: int
    target_running_requests: int
    feasible: bool = False
    reason: Reason = Reason.FITS_HBM
    message: str = ""
    remedies: tuple[Remedy, ...] = ()
    hbm_lines: tuple[Line, ...] = ()
    host_lines: tuple[Line, ...] = ()
