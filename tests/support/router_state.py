"""A router as far as the operator sees it: its state over HTTP, as a test wants it.

Not here: routing; a test that needs that runs a picker (`picker_process`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sglpool.render.router_ports import STATE_PORT
from support.pool_on_cluster import ClusterPool
from support.signal_peers import replica, state
from support.waiting import wait_until


class RouterState:
    """The state of one router pod, which gets an address of this machine. Use as a context manager.

    Args:
        pool: Its pool.
        address: The address.
    """

    def __init__(self, pool: ClusterPool, address: str) -> None:
        self._pool = pool
        self._address = address
        self._body = b""
        self.asked = 0

    def __enter__(self) -> RouterState:
        router = wait_until(self._pod, timeout_s=60, describe="the pool has a router pod that runs")
        assert router is not None
        self._name = router["metadata"]["name"]
        self.says(0)
        self._server = ThreadingHTTPServer((self._address, STATE_PORT), self._handler())
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        status = {"status": {"podIP": self._address, "podIPs": [{"ip": self._address}]}}
        self._pool.kubectl(
            "patch", "pod", self._name, "-n", self._pool.namespace, "--subresource=status", "--type=merge",
            "-p", json.dumps(status),
        )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def says(self, in_flight: int) -> None:
        """Say that so many requests are in flight, shared by the replicas that there are now."""
        uids = [str(pod["metadata"]["uid"]) for pod in self._pool.pods().values()]
        shares = _shares(in_flight, uids)
        replicas = [replica(uid, in_flight=share, idle=share == 0) for uid, share in shares.items()]
        self._body = json.dumps(state(*replicas, router=self._name, pool=self._pool.name)).encode()

    def _pod(self) -> dict[str, Any] | None:
        labels = f"sglpool.io/pool={self._pool.name},app.kubernetes.io/component=router"
        items = self._pool.kubectl.json("get", "pods", "-n", self._pool.namespace, "-l", labels)["items"]
        return next((pod for pod in items if pod["status"].get("podIP")), None)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        router = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                router.asked += 1
                self.send_response(200)
                self.send_header("Content-Length", str(len(router._body)))
                self.end_headers()
                self.wfile.write(router._body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def _shares(in_flight: int, uids: Sequence[str]) -> dict[str, int]:
    """Requests by replica, as even as they go."""
    return {uid: in_flight // len(uids) + (place < in_flight % len(uids)) for place, uid in enumerate(uids)}
