"""What the status says of each GPU type: its replicas, and what one of them holds.

What one holds is an estimate until a replica of the current revision has said what it really has. Not here: the
estimate (`sizing`), and asking replicas (`signals`). Nothing is sized or rendered by what an engine said.
"""

from collections.abc import Mapping, Sequence
from statistics import median_low

from sglpool.api.base import Manifest
from sglpool.api.pool import Pool
from sglpool.plan.observed import Observed, ObservedPod
from sglpool.plan.planner import template_outdated
from sglpool.sizing.pools import SizedGPU

ESTIMATE, ENGINE = "Estimate", "Engine"


def gpu_statuses(
    pool: Pool,
    sized: Sequence[SizedGPU],
    observed: Observed,
    *,
    desired: Mapping[str, int],
    kv_tokens: Mapping[str, int],
) -> list[Manifest]:
    """`status.gpus`.

    Args:
        pool: With the status as stored.
        sized: Sizes by GPU type.
        observed: What exists.
        desired: Wanted replicas by GPU type.
        kv_tokens: KV tokens that engines said they have, by uid of the pod.
    """
    statuses = []
    for one in sized:
        owned = observed.own_statefulset(pool, one.entry.type)
        pods = [p for p in observed.pods_of(one.entry.type) if owned and p.owner_uid == owned.uid and not p.terminating]
        updated = [p for p in pods if owned is not None and p.revision == owned.update_revision]
        status: Manifest = {
            "type": one.entry.type,
            "desired": desired.get(one.entry.type, 0),
            "replicas": len(pods),
            "ready": sum(p.ready for p in pods),
            "updated": len(updated),
        }
        if one.fit is not None and one.fit.feasible:
            capacity = _estimate(one)
            if owned is not None and owned.caught_up and not template_outdated(pool, one, owned):
                capacity |= _corrected(pool, one, [p for p in updated if p.ready], kv_tokens)
            status["capacity"] = capacity
        statuses.append(status)
    return statuses


def _estimate(one: SizedGPU) -> Manifest:
    assert one.fit is not None
    return {
        "kvTokens": one.fit.kv_tokens,
        "hostKVTokens": one.fit.host_kv_tokens,
        "conversationsAtContext": one.fit.conversations_at_context,
        "targetRunningRequests": one.fit.target_running_requests,
        "hicacheSizeGBPerRank": one.fit.hicache_size_gb_per_rank,
        "source": ESTIMATE,
    }


def _corrected(pool: Pool, one: SizedGPU, ready: Sequence[ObservedPod], kv_tokens: Mapping[str, int]) -> Manifest:
    """What ready replicas of the current revision say of their KV cache; empty while none has said anything.

    The median, so that neither a replica whose pool has shrunk nor the roundings of one engine are taken for all.
    """
    said = [kv_tokens[pod.uid] for pod in ready if pod.uid in kv_tokens]
    if said:
        assert one.request is not None
        tokens = median_low(said)
        return {"kvTokens": tokens, "conversationsAtContext": tokens // one.request.context_tokens, "source": ENGINE}
    return _kept(pool, one) if ready else {}


def _kept(pool: Pool, one: SizedGPU) -> Manifest:
    """What was said to a former operator: ready replicas are asked within a minute, and the spec is the same."""
    if pool.status.get("observedGeneration") != pool.generation:
        return {}
    stored: Manifest = next((gpu for gpu in pool.status.get("gpus") or () if gpu["type"] == one.entry.type), {})
    capacity: Manifest = stored.get("capacity") or {}
    if capacity.get("source") != ENGINE:
        return {}
    return {field: capacity[field] for field in ("kvTokens", "conversationsAtContext", "source")}
