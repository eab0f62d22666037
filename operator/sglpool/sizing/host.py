"""What a replica takes of its node's memory: HiCache pools, processes, `/dev/shm` and the start-up guard.

`--hicache-size` is decimal gigabytes **per rank**, and counts neither the draft's pool nor an indexer's, which
get as many slots. A pool spec says the total of the replica instead; these functions translate.
"""

from __future__ import annotations

from sglpool.catalog import GIB

GB = 10**9

#: Memory of the engine's processes beside the pools (launcher, detokenizer, scheduler). Read: SGLang 0.5.23, TP1.
BASE_OVERHEAD_BYTES = 4 * GIB

#: The same for each rank after the first. Read: SGLang 0.5.23, TP2 (1.0 to 1.35 GiB a scheduler).
RANK_OVERHEAD_BYTES = GIB * 13 // 10

#: `/dev/shm` of one rank: load snapshots and images of the engine.
SHM_SINGLE_BYTES = 4 * GIB

#: `/dev/shm` of several ranks: NCCL needs it too; deployments use 16 to 32 GiB.
SHM_MULTI_BYTES = 16 * GIB

#: What SGLang keeps free of host memory when it checks a pool at start-up.
GUARD_RESERVE_BYTES = 10 * GIB

#: `hiCache: Auto` leaves this much of a node alone, after a tenth of it: a production fleet's rule.
AUTO_RESERVE_BYTES = 64 * GIB
AUTO_SHARE_PERCENT = 90


def shm_bytes(tensor_parallel_size: int) -> int:
    """Size of `/dev/shm`, which counts in the pod's memory."""
    return SHM_MULTI_BYTES if tensor_parallel_size > 1 else SHM_SINGLE_BYTES


def host_overhead_bytes(tensor_parallel_size: int) -> int:
    """Host memory of the engine's processes: 4 GiB, and 1.3 GiB for each rank after the first."""
    return BASE_OVERHEAD_BYTES + (tensor_parallel_size - 1) * RANK_OVERHEAD_BYTES


def auto_hicache_bytes(*, node_memory_bytes: int, gpus_per_node: int, tensor_parallel_size: int) -> int:
    """Resolve `hiCache.size: Auto`: a replica's share of (allocatable x 0.9 - 64 GiB), less what else it takes.

    Args:
        node_memory_bytes: memory that pods of a node can have.
        gpus_per_node: GPUs of the node, which share its memory evenly.
        tensor_parallel_size: GPUs of the replica.

    Returns:
        Bytes for the pools of all ranks; 0 if the node has none to spare.
    """
    usable = node_memory_bytes * AUTO_SHARE_PERCENT // 100 - AUTO_RESERVE_BYTES
    share = usable * tensor_parallel_size // gpus_per_node
    return max(0, share - host_overhead_bytes(tensor_parallel_size) - shm_bytes(tensor_parallel_size))


def hicache_gb_per_rank(
    *, size_bytes: int, tensor_parallel_size: int, target_bytes_per_token: int, all_bytes_per_token: int
) -> int:
    """Derive `--hicache-size` from the host cache of the whole replica, rounded down.

    Args:
        size_bytes: all host cache of the replica.
        tensor_parallel_size: ranks, each with pools of its own.
        target_bytes_per_token: what one token takes in a rank's target pool.
        all_bytes_per_token: the same with the indexer's and the draft's pools.
    """
    return size_bytes * target_bytes_per_token // (tensor_parallel_size * all_bytes_per_token * GB)


def hicache_rank_bytes(*, gb_per_rank: int, target_bytes_per_token: int, all_bytes_per_token: int) -> int:
    """Host memory that all pools of one rank take for a given `--hicache-size`."""
    return gb_per_rank * GB * all_bytes_per_token // target_bytes_per_token


def hicache_size_for_gb(
    *, gb_per_rank: int, tensor_parallel_size: int, target_bytes_per_token: int, all_bytes_per_token: int
) -> int:
    """The least size of a replica's host cache that gives this `--hicache-size`, in bytes."""
    return -(-gb_per_rank * GB * tensor_parallel_size * all_bytes_per_token // target_bytes_per_token)


def host_kv_tokens(*, gb_per_rank: int, target_bytes_per_token: int) -> int:
    """Tokens that the host pools hold. Every rank holds the same ones; the engine rounds up (read)."""
    return -(-gb_per_rank * GB // target_bytes_per_token)


def guard_bytes(*, used_bytes: int, rank_pool_bytes: int, tensor_parallel_size: int) -> int:
    """The least memory limit that SGLang's start-up guard accepts, in bytes.

    Each rank that arrives must find room for its own pool times the ranks, with 10 GiB to spare, while the pools
    of the ranks before it are already pinned: used + 10 GiB + (2n - 1) x pool. Without a pool there is no guard.

    Args:
        used_bytes: what the container takes beside the pools.
        rank_pool_bytes: the pools of one rank.
        tensor_parallel_size: ranks.
    """
    if rank_pool_bytes == 0:
        return used_bytes
    return used_bytes + GUARD_RESERVE_BYTES + (2 * tensor_parallel_size - 1) * rank_pool_bytes


def largest_rank_pool_bytes(*, limit_bytes: int, used_bytes: int, tensor_parallel_size: int) -> int:
    """The largest pools of one rank that the guard accepts under a memory limit, in bytes; 0 if none."""
    return max(0, limit_bytes - used_bytes - GUARD_RESERVE_BYTES) // (2 * tensor_parallel_size - 1)
