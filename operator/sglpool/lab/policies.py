"""The policies that can be simulated, by name. Not here: the policies themselves (`routing`)."""

from collections.abc import Mapping

from sglpool.routing.baselines import POLICIES, Pick
from sglpool.routing.policy import pick

AFFINITY = "affinity"
"""The product's own."""

ALL: Mapping[str, Pick] = {AFFINITY: pick, **POLICIES}
"""All of them, the product's own first."""


def pick_of(name: str) -> Pick:
    """The policy of a name.

    Raises:
        ValueError: there is none; the message names those that exist.
    """
    if name not in ALL:
        raise ValueError(f"policy {name!r} is not known: give one of {', '.join(ALL)}")
    return ALL[name]
