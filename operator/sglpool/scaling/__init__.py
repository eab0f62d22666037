"""The autoscaler's decision: how many replicas of each GPU type a pool should have, from its load.

Pure: no I/O and no clock; signals, memory and time are arguments, and what it leaves to the next decision is a result.
"""

from sglpool.scaling.decide import decide
from sglpool.scaling.types import (
    Decision,
    Memory,
    Policy,
    Reason,
    ReplicaSample,
    Signals,
    StartingReplica,
    TypePolicy,
    TypeState,
)

__all__ = [
    "Decision",
    "Memory",
    "Policy",
    "Reason",
    "ReplicaSample",
    "Signals",
    "StartingReplica",
    "TypePolicy",
    "TypeState",
    "decide",
]
