"""The policies that can be simulated, by name. Not here: the policies themselves (`routing`)."""

from sglpool.lab.router import Pick
from sglpool.routing.policy import pick

AFFINITY = "affinity"
"""The product's own."""


def policies() -> dict[str, Pick]:
    """All of them, the product's own first."""
    found: dict[str, Pick] = {AFFINITY: pick}
    try:
        from sglpool.routing.baselines import POLICIES

        found.update(POLICIES)
    except ImportError:
        pass
    return found


def pick_of(name: str) -> Pick:
    """The policy of a name.

    Raises:
        ValueError: there is none; the message names those that exist.
    """
    known = policies()
    if name not in known:
        raise ValueError(f"policy {name!r} is not known: give one of {', '.join(known)}")
    return known[name]
