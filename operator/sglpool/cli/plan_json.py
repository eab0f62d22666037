"""The JSON of `sglpool plan -o json`: a stable interface, described in docs/plan-json.md.

Names here follow the API's (camelCase, units at the end) and never change within v1alpha1; fields may be added.
"""

from sglpool.cli.planned import Invalid, Planned
from sglpool.sizing.pools import SizedGPU

Json = dict[str, object]


def to_json(result: Planned | Invalid) -> Json:
    """One pool as JSON data."""
    if isinstance(result, Invalid):
        problems = [{"path": problem.path, "message": problem.message} for problem in result.problems]
        return {"pool": result.pool, "valid": False, "errors": problems}
    return {
        "pool": result.pool.name,
        "feasible": result.feasible,
        "gpus": [_gpu(result, sized) for sized in result.sized],
    }


def _gpu(planned: Planned, sized: SizedGPU) -> Json:
    fit = sized.fit
    return {
        "type": sized.entry.type,
        "tensorParallelSize": planned.pool.spec.tensor_parallel_size,
        "gpusPerReplica": planned.pool.spec.tensor_parallel_size,
        "weightBytesPerGPU": fit and fit.weight_bytes_per_gpu,
        "kvBytesPerTokenPerGPU": fit and fit.kv_bytes_per_token_per_gpu,
        "kvTokens": fit and fit.kv_tokens,
        "hostKVTokens": fit and fit.host_kv_tokens,
        "hicacheSizeGBPerRank": fit and fit.hicache_size_gb_per_rank,
        "hostMemoryRequestBytes": fit and fit.host_memory_request_bytes,
        "hostMemoryGuardBytes": fit and fit.host_memory_guard_bytes,
        "conversationsAtContext": fit and fit.conversations_at_context,
        "targetRunningRequests": fit and fit.target_running_requests,
        "feasible": sized.feasible,
        "reason": sized.reason,
        "message": sized.message,
        "argv": list(planned.argv(sized)),
    }
