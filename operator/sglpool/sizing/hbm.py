"""What a GPU's memory holds: the formulas, on plain numbers.

kv_pool = fraction x free before the load - weights / tp - draft; tokens = kv_pool / bytes of one token on one
rank. Exact on a real engine at TP1 and TP2. Weights are shared evenly; what is whole on every rank is part of
the error band only. Graphs, activations and the request table live outside the fraction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sglpool.catalog import GIB, GPUType

#: Bytes of one entry of the engine's request-to-token table (int32), which lies outside the memory fraction.
REQUEST_TABLE_ENTRY_BYTES = 4

#: How far the formula was off the pools read on an H200 with SGLang 0.5.23, per GPU and in either direction.
MEASURED_MARGIN_BYTES = GIB * 8 // 100

#: The same for a GPU type whose constants nobody has read: an estimate.
ESTIMATED_MARGIN_BYTES = GIB // 2


def free_before_load_bytes(gpu: GPUType, tensor_parallel_size: int) -> int:
    """GPU memory that is free when the engine starts to load, in bytes.

    The total as nvidia-smi reports it, less the CUDA context and, with more than one rank, NCCL's buffers.
    """
    nccl_bytes = gpu.nccl_bytes if tensor_parallel_size > 1 else 0
    return gpu.memory_bytes - gpu.context_bytes - nccl_bytes


def sharded_bytes(checkpoint_bytes: int, tensor_parallel_size: int) -> int:
    """Weights of one rank when the ranks share them evenly, in bytes, rounded up."""
    return -(-checkpoint_bytes // tensor_parallel_size)


def static_bytes(*, free_bytes: int, mem_fraction_percent: float) -> int:
    """Bytes of a GPU that the memory fraction gives to weights and KV."""
    return math.floor(free_bytes * mem_fraction_percent / 100)


def kv_pool_bytes(
    *, free_bytes: int, mem_fraction_percent: float, weight_bytes: int, draft_weight_bytes: int = 0
) -> int:
    """Bytes of one GPU that are left for KV; negative if the weights alone exceed the fraction.

    Args:
        free_bytes: free memory before the load, one GPU.
        mem_fraction_percent: `--mem-fraction-static` in percent.
        weight_bytes: the model's weights on this GPU.
        draft_weight_bytes: the draft's weights on this GPU.
    """
    static = static_bytes(free_bytes=free_bytes, mem_fraction_percent=mem_fraction_percent)
    return static - weight_bytes - draft_weight_bytes


def kv_tokens(pool_bytes: int, bytes_per_token: int) -> int:
    """Whole tokens in a pool; zero for a pool that does not exist."""
    return max(0, pool_bytes) // bytes_per_token


def request_table_bytes(*, max_running_requests: int, context_tokens: int) -> int:
    """Bytes of the request-to-token table: running limit x context x 4, outside the memory fraction."""
    return max_running_requests * context_tokens * REQUEST_TABLE_ENTRY_BYTES


@dataclass(frozen=True, slots=True)
class Napkin:
    """The back-of-an-envelope figures of one tensor-parallel size.

    Attributes:
        replica_bytes: memory of all GPUs less the weights; negative if they do not fit.
        gpu_bytes: the same for one GPU.
        tokens: tokens of KV that fit, 0 if the weights do not.
    """

    replica_bytes: int
    gpu_bytes: int
    tokens: int


def napkin(*, gpu_bytes: int, weight_bytes: int, tensor_parallel_size: int, bytes_per_token: int) -> Napkin:
    """Estimate KV capacity before any overhead, to compare with published figures.

    Args:
        gpu_bytes: memory of one GPU.
        weight_bytes: weights of the whole model.
        tensor_parallel_size: GPUs of a replica.
        bytes_per_token: bytes of KV that one token takes **on each rank**; an MLA latent is not divided.
    """
    left = gpu_bytes * tensor_parallel_size - weight_bytes
    per_gpu = left // tensor_parallel_size
    return Napkin(replica_bytes=left, gpu_bytes=per_gpu, tokens=kv_tokens(per_gpu, bytes_per_token))
