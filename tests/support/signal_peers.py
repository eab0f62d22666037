"""Whom the operator asks for load, as small servers of a test: routers, engines and a Prometheus, good and bad ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from sglpool.signals import Endpoint, Target

Json = dict[str, Any]

LOADS: Mapping[str, int] = {
    "num_running_reqs": 0,
    "num_waiting_reqs": 0,
    "num_waiting_uncached_tokens": 0,
    "num_used_tokens": 0,
    "max_total_num_tokens": 1_000_000,
}


def replica(uid: str, **changes: Any) -> Json:
    """A replica as a router shows it: idle, polled just now."""
    return {
        "uid": uid,
        "in_flight": 0,
        "queued": 0,
        "kv_used_tokens": 0,
        "kv_total_tokens": 1_000_000,
        "conversations": 0,
        "idle": True,
        "last_poll_age_s": 0.4,
        **changes,
    }


def state(*replicas: Json, router: str = "r1", **changes: Any) -> Json:
    """The state of a router of pool `p`."""
    return {
        "pool": "p",
        "router": router,
        "replicas": list(replicas),
        "in_flight": sum(each["in_flight"] for each in replicas),
        "refused_conversations_last_minute": 0,
        **changes,
    }


def loads(**changes: int) -> Json:
    """An answer of `/v1/loads` with one rank."""
    return {"version": "0.5.23", "loads": [{**LOADS, **changes}]}


def endpoint(name: str, **changes: Any) -> Endpoint:
    """A pod on this machine, whose uid is its name."""
    return Endpoint(**{"name": name, "uid": name, "address": "127.0.0.1", **changes})


def target(*engines: str, routers: tuple[str, ...] = (), **changes: Any) -> Target:
    """Pool `p` with these pods; with routers if any are named."""
    return Target(
        **{
            "namespace": "ns",
            "pool": "p",
            "routed": bool(routers),
            "routers": tuple(map(endpoint, routers)),
            "engines": tuple(map(endpoint, engines)),
            **changes,
        }
    )


async def serve(path: str, handler: Any) -> TestServer:
    """A server that answers GET on one path."""
    app = web.Application()
    app.router.add_get(path, handler)
    server = TestServer(app, host="127.0.0.1")
    await server.start_server()
    return server
