"""The picker's own HTTP endpoint: /state, /metrics, /healthz, and /homes for a sibling that starts. Read-only.

Not here: what they show (`views`, `snapshots`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

import aiohttp
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

from sglpool.picker.snapshots import absorb_lines, export_lines
from sglpool.picker.views import Views
from sglpool.routing.state import RoutingState

STUCK_S = 10.0
"""So long without a turn of the picker's clock, and it is not alive."""
SIBLING_LIMIT_S = 3.0
MAX_SIBLINGS = 4
MAX_HOMES_BYTES = 64 * 2**20

_LOG = logging.getLogger("sglpool.picker")


def build_app(
    *, views: Views, registry: CollectorRegistry, state: RoutingState, idle_turn_s: Callable[[], float]
) -> web.Application:
    """The web application.

    Args:
        views: What to show.
        registry: Metrics.
        state: Homes for siblings.
        idle_turn_s: Seconds since the picker's clock turned last.
    """

    async def healthz(_: web.Request) -> web.Response:
        if idle_turn_s() > STUCK_S:
            return web.Response(status=503, text=f"the picker has stood still for {idle_turn_s():.0f} s\n")
        return web.Response(text="ok\n")

    async def show_state(_: web.Request) -> web.Response:
        return web.json_response(views.state())

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(body=await rendered(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def homes(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/jsonl"})
        await response.prepare(request)
        async for text in export_lines(state):
            await response.write(text.encode())
        await response.write_eof()
        return response

    app = web.Application()
    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/state", show_state),
            web.get("/metrics", show_metrics),
            web.get("/homes", homes),
        ]
    )
    return app


class _One(Collector):
    """A single metric, to render it by itself."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        yield self._metric


async def rendered(registry: CollectorRegistry) -> bytes:
    """All metrics as text. One at a time: all together are many milliseconds, in which no pick would be answered."""
    texts = []
    for metric in registry.collect():
        texts.append(generate_latest(_One(metric)))
        await asyncio.sleep(0)
    return b"".join(texts)


async def serve(app: web.Application, host: str, port: int) -> web.AppRunner:
    """Listen; `cleanup` of the answer ends it."""
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, host, port, reuse_address=True).start()
    return runner


async def ask_siblings(addresses: Sequence[str], state: RoutingState, clock_s: Callable[[], float]) -> int:
    """Take over the homes that other routers know, of each conversation the newest.

    Not of the first one alone: it may be one that starts as well, and without a store each knows its own clients.

    Args:
        addresses: `ip:port` of the other routers' endpoints; only so many are asked, so that a start stays short.
        state: changed.
        clock_s: the time.

    Returns:
        Conversations that are known afterwards.
    """
    async with aiohttp.ClientSession(trust_env=False) as session:
        for address in addresses[:MAX_SIBLINGS]:
            try:
                lines = await _homes_of(session, address)
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as problem:
                _LOG.info("homes of %s: %s", address, str(problem) or type(problem).__name__)
                continue
            absorb_lines(state, lines, clock_s(), f"homes of {address}")
    return len(state.conversations)


async def _homes_of(session: aiohttp.ClientSession, address: str) -> list[str]:
    async with asyncio.timeout(SIBLING_LIMIT_S), session.get(f"http://{address}/homes") as response:
        if response.status != 200:
            raise ValueError(f"status {response.status}")
        content = bytearray()
        async for chunk in response.content.iter_any():
            content += chunk
            if len(content) > MAX_HOMES_BYTES:
                raise ValueError(f"more than {MAX_HOMES_BYTES} bytes")
    return content.decode("utf-8", "replace").splitlines()
