"""The session policy: which replica gets a request, so that conversations stay on their KV and load stays even.

Pure: no I/O and no clock; time and randomness are arguments. The same code runs in the picker and in the simulator.
`policy.pick`, `policy.release` and `policy.lapse` are the entry.
"""

from sglpool.routing.load import load
from sglpool.routing.policy import lapse, pick, release
from sglpool.routing.state import RoutingState
from sglpool.routing.types import (
    ConversationKey,
    Decision,
    Outcome,
    PickRequest,
    PolicyConfig,
    Randomness,
    Replica,
    Rule,
)

__all__ = [
    "ConversationKey",
    "Decision",
    "Outcome",
    "PickRequest",
    "PolicyConfig",
    "Randomness",
    "Replica",
    "RoutingState",
    "Rule",
    "lapse",
    "load",
    "pick",
    "release",
]
