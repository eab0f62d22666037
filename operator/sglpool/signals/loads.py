"""`/v1/loads` of an engine: where it is, and its figures summed over data-parallel ranks.

Not here: what is made of them (`engines`, `health`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sglpool.signals.fields import Unreadable, count, objects

LOADS_PATH = "/v1/loads?include=core"


def ranks_of(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The ranks in an answer.

    Raises:
        Unreadable: There is none.
    """
    ranks = objects(body, "loads")
    if not ranks:
        raise Unreadable("reports no rank in /v1/loads")
    return ranks


def total(ranks: Sequence[Mapping[str, Any]], name: str, default: int | None = None) -> int:
    """A count, summed over ranks.

    Raises:
        Unreadable: A rank has it not, without a default, or it is no count.
    """
    return sum(count(rank, name, default) for rank in ranks)
