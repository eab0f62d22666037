"""How long starts take, learnt from those that were seen, and since when pods are missing.

Not here: what follows from a slow start (`capacity`).
"""

from collections.abc import Mapping
from dataclasses import replace

from sglpool.scaling.capacity import podless_replicas
from sglpool.scaling.types import Memory, Policy, Signals

STARTS_KEPT = 8


def remember_starts(policy: Policy, signals: Signals, memory: Memory, now_s: float) -> Memory:
    """The memory with the starts that ended since the last decision.

    A start ends when the replica is ready, not when it gets traffic: a gate may take as long as it likes.
    A replica that was ready before and is again was not started, so it says nothing. Neither does one that was there
    already at the first decision: it may be one of those.
    """
    ready = {sample.uid: sample.gpu_type for sample in signals.replicas}
    ready |= {one.uid: state.type for state in signals.types for one in state.starting if one.ready}
    waiting = {one.uid: one.since_s for state in signals.types for one in state.starting if not one.ready}
    fresh = memory.last_s is not None
    known = ({*memory.known, *ready} if fresh else {*ready, *waiting}) & (ready.keys() | waiting.keys())
    if known == memory.known and not waiting and not memory.starting:
        return memory
    return replace(
        memory,
        starting={uid: since_s for uid, since_s in waiting.items() if uid not in known},
        known=frozenset(known),
        starts=_starts(policy, memory, ready, now_s),
    )


def forget_times(signals: Signals, memory: Memory) -> Memory:
    """The memory without all that was timed by another clock, or too long ago. What was wanted and learnt stays."""
    every = {sample.uid for sample in signals.replicas} | {one.uid for each in signals.types for one in each.starting}
    return Memory(wanted=memory.wanted, starts=memory.starts, known=frozenset(every))


def _starts(policy: Policy, memory: Memory, ready: Mapping[str, str], now_s: float) -> Mapping[str, tuple[float, ...]]:
    starts = {one.type: memory.starts[one.type] for one in policy.types if one.type in memory.starts}
    for uid, since_s in memory.starting.items():
        took_s = now_s - since_s
        if uid in ready and took_s > 0:
            kept = (*starts.get(ready[uid], ()), took_s)
            starts[ready[uid]] = kept[-STARTS_KEPT:]
    return starts


def remember_podless(signals: Signals, memory: Memory, now_s: float) -> Memory:
    """The memory with the time since which a StatefulSet has fewer pods than are wanted."""
    since = {}
    for state in signals.types:
        if podless_replicas(state, memory.wanted.get(state.type, state.replicas)):
            since[state.type] = memory.podless_since_s.get(state.type, now_s)
    return replace(memory, podless_since_s=since) if since != memory.podless_since_s else memory
