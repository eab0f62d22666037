"""A stand-in for the API server that knows one thing: the pods of one pool, ready, for ever.

What the picker asks for in a benchmark is a list and a watch without changes; a whole control plane would only cost the
cores that are measured. It runs in a thread of the benchmark. Not here: anything that pods may go through.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from sglpool.api import names

POOL = "bench"
NAMESPACE = "default"
_START_LIMIT_S = 10.0
_VERSION = "1"


@contextmanager
def api_server(addresses: Sequence[str]) -> Iterator[str]:
    """Serve the pods of engines with these IP addresses for the length of the block; yields the base URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner = web.AppRunner(
        _application([_pod(number, ip) for number, ip in enumerate(addresses)]), shutdown_timeout=0.1
    )
    try:
        url = asyncio.run_coroutine_threadsafe(_start(runner), loop).result(_START_LIMIT_S)
        yield url
    finally:
        asyncio.run_coroutine_threadsafe(_end(runner), loop).result(_START_LIMIT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_START_LIMIT_S)
        loop.close()


async def _start(runner: web.AppRunner) -> str:
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    _, port = runner.addresses[0]
    return f"http://127.0.0.1:{port}"


async def _end(runner: web.AppRunner) -> None:
    await runner.cleanup()
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


def _application(pods: list[dict[str, Any]]) -> web.Application:
    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response(
                {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": _VERSION}, "items": pods}
            )
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        await asyncio.sleep(float(request.query.get("timeoutSeconds", "240")))
        return response

    application = web.Application()
    application.router.add_get(f"/api/v1/namespaces/{NAMESPACE}/pods", answer)
    return application


def _pod(number: int, ip: str) -> dict[str, Any]:
    since = "2026-01-01T00:00:00Z"
    return {
        "metadata": {
            "name": f"{POOL}-{number}",
            "namespace": NAMESPACE,
            "uid": f"9f1c0d5e-5b0a-4d7e-8a11-{number:012d}",
            "resourceVersion": _VERSION,
            "labels": names.child_labels(POOL, names.COMPONENT_ENGINE) | {names.LABEL_GPU: "B200"},
        },
        "status": {
            "phase": "Running",
            "podIP": ip,
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": since}],
            "containerStatuses": [{"name": names.ENGINE_CONTAINER, "restartCount": 0, "ready": True}],
        },
    }
