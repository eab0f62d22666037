"""How many replicas of each GPU type a pool should have.

Fixed replicas fill the types in order of preference; what the autoscaler decided is held within the bounds. Not here:
following the load (`scaling`).
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


def desired_replicas(
    spec: InferencePoolSpec,
    current: Mapping[str, int],
    *,
    frozen: bool = False,
    decided: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Wanted replicas by GPU type, in the order of `spec.gpus`.

    Args:
        spec: The pool's spec.
        current: `spec.replicas` of the existing StatefulSets by GPU type, those that left the spec included. With
            autoscaling and no load figures the size is held as it is, within the bounds.
        frozen: Whether the spec cannot be carried out. Then only what exists grows or shrinks, by the difference
            between the wanted total and the running one, and no type gives way to one that may never run.
        decided: What the autoscaler wants by GPU type, None where it has not decided. A type that it does not name is
            held.
    """
    if frozen and current:
        held = {gpu.type: current.get(gpu.type, 0) for gpu in spec.gpus}
        existing = [gpu for gpu in spec.gpus if gpu.type in current]
        total = sum(current.values())
        change = _wanted_total(spec, total) - total
        left = total - sum(held.values())  # types that are not in the spec any more are the first to be too many
        return _resize(held, change if change > 0 else min(change + left, 0), existing)
    if spec.autoscaling is None:
        return split_in_order(spec.replicas or 0, spec.gpus)
    wanted = {**current, **(decided or {})}
    held = {gpu.type: _clamp(wanted.get(gpu.type, 0), gpu) for gpu in spec.gpus}
    total = sum(held.values())
    return _resize(held, _wanted_total(spec, total) - total, spec.gpus)


def _wanted_total(spec: InferencePoolSpec, total: int) -> int:
    if spec.autoscaling is None:
        return spec.replicas or 0
    return min(max(total, spec.autoscaling.min_replicas), spec.autoscaling.max_replicas)


def _clamp(value: int, gpu: GPU) -> int:
    value = max(value, gpu.min_replicas)
    return value if gpu.max_replicas is None else min(value, gpu.max_replicas)


def _resize(split: dict[str, int], change: int, gpus: Sequence[GPU]) -> dict[str, int]:
    """Grow in order of preference, or shrink the other way round, within the bounds of each type."""
    for gpu in gpus if change > 0 else reversed(gpus):
        before = split[gpu.type]
        if change > 0:
            most = before + change if gpu.max_replicas is None else max(gpu.max_replicas, before)
            split[gpu.type] = min(before + change, most)
        else:
            split[gpu.type] = max(before + change, min(gpu.min_replicas, before))
        change -= split[gpu.type] - before
    return split
