"""The kubelet's log endpoint, so that `kubectl logs` works: files in, text out, followed on request.

Only the API server talks to it, over TLS with the sandbox's own certificate. Not here: exec, attach, port-forward.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

from aiohttp import web

from sglpool.sandbox.nodeagent.addresses import KUBELET_PORT
from sglpool.sandbox.nodeagent.logreader import Follower, log_files
from sglpool.sandbox.nodeagent.logs import is_complete

_FOLLOW_POLL_S = 0.2


class LogServer:
    """Serves the logs below one agent folder, on the kubelet port of every node that is on."""

    def __init__(self, folder: Path, certificate: Path, key: Path) -> None:
        """Serve the logs of `folder` with a certificate that need not name the address."""
        self._folder = folder
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._tls.load_cert_chain(certificate, key)
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)

    async def __aenter__(self) -> Self:
        """Get ready to listen."""
        await self._runner.setup()
        return self

    async def __aexit__(self, *_: object) -> None:
        """End every listener and every answer."""
        await self._runner.cleanup()

    @contextlib.asynccontextmanager
    async def listening(self, address: str) -> AsyncIterator[None]:
        """Answer on a node's address for as long as the block runs."""
        # Shared: a node that is switched on again listens while its last listener is still closing.
        site = web.TCPSite(self._runner, address, KUBELET_PORT, ssl_context=self._tls, reuse_port=True)
        await site.start()
        try:
            yield
        finally:
            await site.stop()

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        route = request.match_info
        attempts = log_files(self._folder, route["namespace"], route["pod"], route["container"])
        wanted = attempts[:-1] if request.query.get("previous") == "true" else attempts
        if not wanted:
            raise web.HTTPNotFound(text=f"no logs of container {route['container']} in pod {route['pod']}")
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        lines = request.query.get("tailLines", "")
        follower = Follower(wanted[-1], tail_lines=int(lines) if lines.isdigit() else None)
        with contextlib.suppress(FileNotFoundError):
            while True:
                complete = request.query.get("follow") != "true" or is_complete(wanted[-1])
                while chunk := follower.read():
                    await response.write(chunk)
                if complete:
                    break
                # The client that hangs up cancels this handler.
                await asyncio.sleep(_FOLLOW_POLL_S)
        return response
