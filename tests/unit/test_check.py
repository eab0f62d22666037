"""`sglpool operator --check`: each part of an installation, fine and not."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from sglpool.controller.check import check
from sglpool.kube import NotFound


class Installation:
    """An API server's answers about an installation."""

    def __init__(self, *, address: str = "", crd: bool = True, denied: frozenset[str] = frozenset()) -> None:
        self.address = address
        self.crd = crd
        self.denied = denied

    async def list(self, resource: Any, **_: Any) -> list[dict[str, Any]]:
        if resource.plural == "inferencepools":
            if not self.crd:
                raise NotFound("not there", verb="list", kind=resource.kind, code=404)
            return []
        return [{"metadata": {"name": "operator-1"}, "status": {"podIP": self.address}}] if self.address else []

    async def openapi(self, resource: Any) -> dict[str, Any]:
        del resource
        return {}

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        asked = manifest["spec"]["resourceAttributes"]
        return {"status": {"allowed": f"{asked['verb']} {asked['resource']}" not in self.denied}}


async def texts(api: Installation, port: int = 1, **options: Any) -> dict[str, bool]:
    settings: dict[str, Any] = {"namespaces": None, "leader_election": False, "own_namespace": "own"} | options
    return {f.text: f.fine for f in await check(api, port=port, **settings)}  # type: ignore[arg-type]


async def test_an_installation_that_works() -> None:
    async def readyz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    app = web.Application()
    app.add_routes([web.get("/readyz", readyz)])
    async with TestServer(app) as server:
        found = await texts(Installation(address=str(server.host)), int(server.port or 0), leader_election=True)
    assert all(found.values()), found
    assert "pod operator-1 is ready: ok" in found


async def test_an_operator_that_is_not_ready_is_quoted() -> None:
    async def readyz(_: web.Request) -> web.Response:
        return web.Response(status=503, text="this account may not watch jobs\n")

    app = web.Application()
    app.add_routes([web.get("/readyz", readyz)])
    async with TestServer(app) as server:
        found = await texts(Installation(address=str(server.host)), int(server.port or 0))
    assert found["pod operator-1 is not ready: this account may not watch jobs"] is False


async def test_what_is_missing_is_named() -> None:
    found = await texts(Installation(crd=False, denied=frozenset({"delete pods", "watch nodes"})))
    failed = [text for text, fine in found.items() if not fine]
    assert [
        word for word in ("CRD", "delete pods in all namespaces", "no pod of the operator") if word not in str(failed)
    ] == []
    # Nodes are a choice.
    assert any(fine and "nodes may not be read" in text for text, fine in found.items())


async def test_an_operator_that_does_not_answer() -> None:
    found = await texts(Installation(address="127.0.0.1"), 1)
    assert any(not fine and "cannot be reached at 127.0.0.1:1" in text for text, fine in found.items())
