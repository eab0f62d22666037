"""The way out of a router's own pod: unready, no more connections, wait for streams, tell preStop.

It begins when the picker sees its own pod deleted, or when preStop leaves a marker: the API server may be away just
then. Not here: the pod's deadlines (`render`), engines that go (`fleet`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from sglpool.picker.admin import AdminError, AdminGone, EnvoyAdmin
from sglpool.picker.files import write_whole
from sglpool.routing.pickerconfig import DRAINED_MARKER, LEAVING_MARKER

LEAVE_S = 5.0
"""In this time Services and load balancers have taken an unready pod out."""
LOOK_S = 0.25
RETRY_S = 0.5

_LOG = logging.getLogger("sglpool.picker")


def asked_to_leave(shared: Path) -> bool:
    """Whether preStop has left its marker."""
    return (shared / LEAVING_MARKER).exists()


async def leave(admin: EnvoyAdmin, shared: Path, *, grace_s: float, settle_s: float = LEAVE_S) -> None:
    """Go through the whole way, and write the marker that preStop waits for.

    Args:
        admin: Envoy's.
        shared: Folder of the marker.
        grace_s: Longest wait for streams.
        settle_s: Time between being unready and taking no more connections.
    """
    loop = asyncio.get_running_loop()
    end_s = loop.time() + settle_s + grace_s
    _LOG.info("this router's pod is going: unready from now on")
    try:
        await _insist(admin.fail_health, end_s)
        await asyncio.sleep(settle_s)
        await _insist(admin.drain_listeners, end_s)
        streams = await _wait_for_streams(admin, end_s)
        _LOG.info("this router's pod is going: %d streams left", streams)
    except AdminGone:
        _LOG.info("this router's pod is going: Envoy is gone already")
    write_whole(shared / DRAINED_MARKER, "")


async def _insist(ask: Callable[[], Awaitable[None]], end_s: float) -> None:
    """Ask Envoy until it has answered.

    Raises:
        AdminGone: Nobody is there to ask.
    """
    while True:
        try:
            await ask()
            return
        except AdminGone:
            raise
        except AdminError as problem:
            if asyncio.get_running_loop().time() > end_s:
                raise AdminGone(str(problem)) from problem
            await asyncio.sleep(RETRY_S)


async def _wait_for_streams(admin: EnvoyAdmin, end_s: float) -> int:
    streams = 0
    while asyncio.get_running_loop().time() < end_s:
        try:
            streams = await admin.open_streams()
        except AdminGone:
            raise
        except AdminError:
            await asyncio.sleep(RETRY_S)
            continue
        if streams == 0:
            break
        await asyncio.sleep(LOOK_S)
    return streams
