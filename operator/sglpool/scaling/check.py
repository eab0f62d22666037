"""Whether a policy makes sense. The API refuses what does not; an older CRD, or a sizing that changed, may not.

Not here: what follows. A policy with a problem holds the pool as it is.
"""

import math

from sglpool.scaling.types import Policy, TypePolicy


def problem(policy: Policy) -> str | None:
    """What is wrong with a policy and what to do about it, None if nothing is."""
    if not policy.types:
        return "the pool has no GPU type: add one to spec.gpus"
    for one in policy.types:
        found = _of_type(one)
        if found is not None:
            return f"{one.type}: {found}"
    return _of_pool(policy)


def _of_type(one: TypePolicy) -> str | None:
    target, limit = one.target_running_requests, one.max_running_requests
    if not 1 <= target < math.inf:
        return f"targetRunningRequests is {target}; it must be 1 or more"
    if limit is not None and target > limit:
        return (
            f"targetRunningRequests is {target}, but the engine runs at most {limit}: lower the target or raise "
            "engine.maxRunningRequests"
        )
    if one.min_replicas < 0:
        return f"minReplicas is {one.min_replicas}; it must be 0 or more"
    if one.max_replicas is not None and one.max_replicas < one.min_replicas:
        return f"minReplicas is {one.min_replicas}, above maxReplicas {one.max_replicas}: lower it or raise maxReplicas"
    return None


def _of_pool(policy: Policy) -> str | None:
    least, most = policy.min_replicas, policy.max_replicas
    if not 0 <= least <= most:
        return f"autoscaling.minReplicas is {least} and maxReplicas is {most}: they must be 0 <= min <= max"
    if not 0 < policy.target_kv_utilization <= 1:
        return f"the target of KV utilisation is {policy.target_kv_utilization}; it must be above 0 and at most 1"
    if not (policy.cold_start_s > 0 and policy.startup_timeout_s > 0):
        return "a start takes no time: it must take more than 0 s"
    floors = sum(one.min_replicas for one in policy.types)
    if floors > most:
        return (
            f"gpus[].minReplicas sum to {floors}, above autoscaling.maxReplicas {most}: lower them or raise maxReplicas"
        )
    ceilings = [one.max_replicas for one in policy.types]
    if sum(most if each is None else each for each in ceilings) < least:
        return f"gpus[].maxReplicas sum to less than autoscaling.minReplicas {least}: raise one or lower minReplicas"
    return None
