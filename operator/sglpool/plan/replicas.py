"""How many replicas of each GPU type a pool should have.

Fixed replicas fill the types in order of preference. Not here: following the load, which needs signals.
"""

from collections.abc import Mapping, Sequence

from sglpool.api.pool import GPU, InferencePoolSpec


def split_in_order(total: int, gpus: Sequence[GPU]) -> dict[str, int]:
    """Spread a number of replicas over GPU types: every minimum first, then each type up to its maximum, in order.

    Returns:
        Replicas by GPU type; they sum to `total` unless the maxima are too small.
    """
    split = {}
    left = total
    for gpu in gpus:
        split[gpu.type] = min(gpu.min_replicas, left)
        left -= split[gpu.type]
    for gpu in gpus:
        room = left if gpu.max_replicas is None else min(left, gpu.max_replicas - split[gpu.type])
        split[gpu.type] += max(room, 0)
        left -= max(room, 0)
    return split


def desired_replicas(spec: InferencePoolSpec, current: Mapping[str, int]) -> dict[str, int]:
    """Wanted replicas by GPU type, in the order of `spec.gpus`.

    Args:
        spec: The pool's spec.
        current: `spec.replicas` of the existing StatefulSets by GPU type. With autoscaling and no load figures the
            size is held as it is, within the bounds.
    """
    if spec.autoscaling is None:
        return split_in_order(spec.replicas or 0, spec.gpus)
    held = {gpu.type: _clamp(current.get(gpu.type, 0), gpu) for gpu in spec.gpus}
    total = sum(held.values())
    wanted = min(max(total, spec.autoscaling.min_replicas), spec.autoscaling.max_replicas)
    if wanted < total:
        return _shrink(held, total - wanted, spec.gpus)
    return _grow(held, wanted - total, spec.gpus)


def _clamp(value: int, gpu: GPU) -> int:
    value = max(value, gpu.min_replicas)
    return value if gpu.max_replicas is None else min(value, gpu.max_replicas)


def _grow(split: dict[str, int], more: int, gpus: Sequence[GPU]) -> dict[str, int]:
    for gpu in gpus:
        room = more if gpu.max_replicas is None else max(min(more, gpu.max_replicas - split[gpu.type]), 0)
        split[gpu.type] += room
        more -= room
    return split


def _shrink(split: dict[str, int], less: int, gpus: Sequence[GPU]) -> dict[str, int]:
    """The least preferred type gives first."""
    for gpu in reversed(gpus):
        take = max(min(less, split[gpu.type] - gpu.min_replicas), 0)
        split[gpu.type] -= take
        less -= take
    return split
