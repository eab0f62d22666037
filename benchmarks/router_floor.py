"""A picker that knows nothing: the floor of a decision's time. `python -m benchmarks.router_floor SOCKET`.

The same event loop on the same socket answers every question with the same pick. What the real picker takes beyond
it is the price of deciding; what both take is the machine's.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop

from sglpool.routing.pickerconfig import HEADER_DESTINATION, HEADER_PICK

_ANSWER = (
    f"HTTP/1.1 200 OK\r\n{HEADER_DESTINATION}: 127.0.0.11:1,127.0.0.12:1\r\n{HEADER_PICK}: a.b.c.1\r\n"
    "content-length: 0\r\n\r\n"
).encode()


class _Floor(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are of no class of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(_ANSWER * data.count(b"\r\n\r\n"))


async def _serve(path: str) -> None:
    server = await asyncio.get_running_loop().create_unix_server(_Floor, path, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1]))
