"""The operator's HTTP endpoints: liveness, readiness, metrics. Read-only.

Alive means that work moves, not that a web server answers.
"""

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from sglpool.controller.metrics import Metrics
from sglpool.controller.queue import KeyedQueue
from sglpool.controller.resync import PERIOD_S, Resync
from sglpool.controller.store import PoolKey

STUCK_S = 600.0
"""A pool that waits this long for a worker means that the workers are stuck."""


def build_app(
    *,
    queue: KeyedQueue[PoolKey],
    resync: Resync,
    metrics: Metrics,
    wall_clock_s: Callable[[], float],
    stands_by: Callable[[], bool] = lambda: False,
    waits_for: Callable[[], str] = lambda: "",
) -> web.Application:
    """The web application.

    Args:
        queue: Pools in line.
        resync: The full listing.
        metrics: Figures.
        wall_clock_s: Unix time.
        stands_by: Whether another replica works. Such a one is ready: otherwise a roll-out would wait for it for ever.
        waits_for: What keeps it from working, empty if nothing does.
    """

    async def healthz(_: web.Request) -> web.Response:
        if queue.oldest_s > STUCK_S:
            return web.Response(status=503, text=f"a pool has waited {queue.oldest_s:.0f} s for a reconcile\n")
        if resync.last_s is not None and wall_clock_s() - resync.last_s > 3 * PERIOD_S:
            return web.Response(status=503, text="three full listings in a row have failed\n")
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        if waiting := waits_for():
            return web.Response(status=503, text=f"{waiting}\n")
        if stands_by():
            return web.Response(text="ok: another replica holds the Lease, this one stands by\n")
        if resync.last_s is None:
            return web.Response(status=503, text="the first full listing is not done\n")
        return web.Response(text="ok\n")

    async def show_metrics(_: web.Request) -> web.Response:
        metrics.depth.set(queue.depth)
        metrics.adds.set(queue.adds_total)
        metrics.retries.set(queue.retries_total)
        body = generate_latest(metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", show_metrics)])
    return app
