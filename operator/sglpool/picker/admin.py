"""Envoy's admin, over its unix socket: active requests, log files, health, and the way out.

Not here: what follows from its answers (`ledger`, `accesslog`, `leaving`).
"""

from __future__ import annotations

from pathlib import Path

import aiohttp

from sglpool.routing.pickerconfig import CLUSTER_NAME

LIMIT_S = 3.0
_ENGINES, _ACTIVE = f"{CLUSTER_NAME}::", "::rq_active::"


class AdminError(Exception):
    """Envoy's admin did not answer as it should."""


class AdminGone(AdminError):
    """Nobody listens: Envoy is not running."""


class EnvoyAdmin:
    """A client of one Envoy. Use as an async context manager."""

    def __init__(self, socket: Path) -> None:
        """Talk to the admin at `socket`."""
        self._socket = str(socket)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> EnvoyAdmin:
        """Open."""
        self._session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(self._socket, limit=4))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        if self._session is not None:
            await self._session.close()

    async def active_requests(self) -> dict[str, int]:
        """Requests that each engine has of this Envoy, by address.

        Raises:
            AdminError: No answer, or one that cannot be read.
        """
        # As text: of its JSON, fifty engines' worth takes milliseconds to read, in which no pick is answered.
        text = await self._ask("GET", f"/clusters?filter=^{CLUSTER_NAME}$")
        try:
            return parse_active(text)
        except ValueError as problem:
            raise AdminError(f"GET /clusters: cannot be read: {problem}") from problem

    async def reopen_logs(self) -> None:
        """Have Envoy close its log files and open them anew under their names."""
        await self._ask("POST", "/reopen_logs")

    async def fail_health(self) -> None:
        """Be unready from now on."""
        await self._ask("POST", "/healthcheck/fail")

    async def drain_listeners(self) -> None:
        """Take no more connections."""
        await self._ask("POST", "/drain_listeners")

    async def open_streams(self) -> int:
        """Requests of clients that are under way."""
        text = await self._ask("GET", "/stats?filter=^http.serving.downstream_rq_active$")
        _, _, value = text.strip().rpartition(": ")
        return int(value) if value.isdecimal() else 0

    async def _ask(self, method: str, path: str) -> str:
        if self._session is None:
            raise RuntimeError("EnvoyAdmin is used outside its context")
        limit = aiohttp.ClientTimeout(total=LIMIT_S)
        try:
            async with self._session.request(method, f"http://envoy{path}", timeout=limit) as response:
                text = await response.text()
        except aiohttp.ClientConnectorError as problem:
            raise AdminGone(f"{method} {path}: {problem}") from problem
        except (aiohttp.ClientError, OSError, TimeoutError) as problem:
            raise AdminError(f"{method} {path}: {str(problem) or type(problem).__name__}") from problem
        if response.status != 200:
            raise AdminError(f"{method} {path}: {response.status} {text[:200]}")
        return text


def parse_active(clusters: str) -> dict[str, int]:
    """Active requests by address from the answer of /clusters: lines of `engines::ADDRESS::rq_active::COUNT`.

    Raises:
        ValueError: A count is no number.
    """
    active = {}
    at = clusters.find(_ACTIVE)
    while at >= 0:
        begin, end = clusters.rfind("\n", 0, at) + 1, clusters.find("\n", at)
        if clusters.startswith(_ENGINES, begin):
            count = clusters[at + len(_ACTIVE) : end if end >= 0 else len(clusters)]
            active[clusters[begin + len(_ENGINES) : at]] = int(count)
        at = clusters.find(_ACTIVE, at + len(_ACTIVE))
    return active
