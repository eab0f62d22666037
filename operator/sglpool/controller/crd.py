"""Whether the CRD that the API server serves has all fields that this operator knows.

One that is older drops what it does not know without a word: fields that users write, and status that we write. Not
here: what is in the CRD (`api.crd`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from sglpool.api.base import Manifest
from sglpool.api.crd import build_crd
from sglpool.kube import KubeError

_LOG = logging.getLogger(__name__)

MOST_SHOWN = 5
LOOK_S = 60.0
FIRST_PAUSE_S = 2.0


class ServedCRD:
    """Knows which fields the served CRD lacks.

    Args:
        describe: Reads the OpenAPI document of the group.
        show: Is told how many are missing, for the metrics.
    """

    def __init__(self, describe: Callable[[], Awaitable[Manifest]], *, show: Callable[[int], None]) -> None:
        self._describe = describe
        self._show = show
        self._missing: list[str] | None = None

    async def run_for_ever(self, *, period_s: float = LOOK_S) -> None:
        """Look now, and again until nothing is missing: a CRD only becomes newer.

        The schema is published a moment after the CRD was created, so the first looks follow soon.
        """
        pause_s = min(FIRST_PAUSE_S, period_s)
        while True:
            await self.look()
            if self._missing == []:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, period_s)

    async def look(self) -> None:
        """Read the schema, and say what has changed. Where nobody says, nothing is said."""
        try:
            schema = schema_in(await self._describe())
        except KubeError as error:
            _LOG.info("the served schema of InferencePools cannot be read: %s", error)
            return
        if schema is None:
            return
        found = missing_fields(schema)
        if found and found != self._missing:
            _LOG.error("%s", sentence(found))
        if self._missing and not found:
            _LOG.info("the CRD inferencepools.sglpool.io has all fields now")
        self._missing = found
        self._show(len(found))


def missing_fields(served: Mapping[str, Any]) -> list[str]:
    """Fields of spec and status that this operator knows and the served schema does not, outermost only.

    Args:
        served: The schema of InferencePool in the API server's OpenAPI document.
    """
    own = build_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    there = served.get("properties") or {}
    return [path for part in ("spec", "status") for path in _missing(own[part], there.get(part) or {}, part)]


def _missing(own: Mapping[str, Any], served: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, schema in (own.get("properties") or {}).items():
        there = (served.get("properties") or {}).get(name)
        if there is None:
            yield f"{path}.{name}"
        else:
            yield from _missing(schema, there, f"{path}.{name}")
    for inner in ("items", "additionalProperties"):
        if isinstance(own.get(inner), dict):
            yield from _missing(own[inner], served.get(inner) or {}, f"{path}[]")


def schema_in(document: Manifest) -> Manifest | None:
    """The schema of InferencePool in the OpenAPI document of its group, None if there is none yet."""
    schemas = (document.get("components") or {}).get("schemas") or {}
    found: Manifest | None = next((s for name, s in schemas.items() if name.endswith(".InferencePool")), None)
    return found


def sentence(missing: list[str]) -> str:
    """That the CRD is older than the operator, and what to do."""
    more = f" and {len(missing) - MOST_SHOWN} more" if len(missing) > MOST_SHOWN else ""
    return (
        "the CRD inferencepools.sglpool.io is older than this operator: it drops "
        f"{', '.join(missing[:MOST_SHOWN])}{more}. Upgrade it: the chart does with crds.install, or "
        "`sglpool crd | kubectl apply --server-side -f -`"
    )
