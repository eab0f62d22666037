"""Envoy's admin, as the picker asks it."""

from __future__ import annotations

import contextlib
import http.client
import threading
from typing import Any

from sglpool.picker.admin import EnvoyAdmin
from sglpool.routing.pickerconfig import ADMIN_SOCKET
from support.waiting import wait_until


async def test_active_requests_are_counted_by_engine(router: Any) -> None:
    router.a.silent = True

    def ask() -> None:
        # How they end, when the engines die, is another test's matter.
        with contextlib.suppress(OSError, http.client.HTTPException):
            router.envoy.request(body={"model": "m"})

    asking = [threading.Thread(target=ask) for _ in range(3)]
    for thread in asking:
        thread.start()
    wait_until(lambda: router.counts() == [3, 0], timeout_s=20, describe=lambda: f"3 requests: {router.counts()}")
    async with EnvoyAdmin(router.envoy.folder / ADMIN_SOCKET) as admin:
        assert await admin.active_requests() == {router.a.address: 3, router.b.address: 0}
    router.a.kill()
    router.b.kill()
    for thread in asking:
        thread.join(timeout=30)
