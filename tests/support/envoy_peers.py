"""What Envoy talks to in its contract tests: small engines, and a stand-in for the picker.

Both run on one event loop in a thread of their own; tests change their attributes and read what they saw.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sglpool.routing import pickerconfig as names
from support.waiting import wait_until

LINE_LIMIT_BYTES = 256 * 1024


@dataclass
class Seen:
    """One request that arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""


@dataclass
class Answer:
    """What is answered: a head, then chunks; `hold` keeps the chunks after the first back until `release`."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    chunks: Iterable[bytes] = (b'{"ok":true}',)
    hold: bool = False


async def turns() -> None:
    """Let the loop do what is due already: make connections of what was accepted, let go of what was closed."""
    for _ in range(5):
        await asyncio.sleep(0)


class Peers:
    """The thread with its loop; everything made here ends with the `with` block."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._servers: list[_Server] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for server in self._servers:
            self.run(server.close())
        self.run(self._cancel_rest())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()

    async def _cancel_rest(self) -> None:
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await turns()

    def run(self, work: Any) -> Any:
        """Run a coroutine on the loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=15)

    def engine(self) -> Engine:
        """An engine on a port of its own."""
        engine = Engine(self)
        self._servers.append(engine)
        self.run(engine.open())
        return engine

    def picker(self, folder: Path) -> Picker:
        """A picker in Envoy's folder."""
        picker = Picker(self, folder / names.AUTHZ_SOCKET)
        self._servers.append(picker)
        self.run(picker.open())
        return picker


class _Server:
    """Requests in, answers out; connections are kept alive."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._released = asyncio.Event()
        self.seen: list[Seen] = []
        self.gone = 0
        """Connections that the other side closed while an answer was under way."""

    async def open(self) -> None:
        """Listen."""
        raise NotImplementedError

    async def close(self) -> None:
        """Stop listening and hang up."""
        if self._server is not None:
            # What was accepted already becomes a connection first: on a closed server it could not, nor be closed.
            for each in self._server.sockets:
                asyncio.get_running_loop().remove_reader(each.fileno())
            await turns()
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()

    def kill(self) -> None:
        """As if the process had died: every connection is reset, none is taken."""
        self._peers.run(self.close())

    def release(self) -> None:
        """Let held answers go on."""
        self._peers._loop.call_soon_threadsafe(self._released.set)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection. It is closed with its task, also with one that is cancelled before it has begun."""
        self._writers.add(writer)
        task = asyncio.ensure_future(self._connection(reader, writer))
        task.add_done_callback(lambda _: self._hang_up(writer))

    def _hang_up(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        writer.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (seen := await _read_request(reader)) is not None:
                await self._serve(seen, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.gone += 1

    async def _serve(self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError

    async def _send(self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = [f"HTTP/1.1 {answer.status} X", "transfer-encoding: chunked"]
        head += [f"{name}: {value}" for name, value in answer.headers.items()]
        writer.write(("\r\n".join(head) + "\r\n\r\n").encode())
        for index, chunk in enumerate(answer.chunks):
            if answer.hold and index == 1:
                await self._hold(reader)
            writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _hold(self, reader: asyncio.StreamReader) -> None:
        released = asyncio.ensure_future(self._released.wait())
        gone = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({released, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not released.done():
                raise ConnectionResetError
        finally:
            released.cancel()
            gone.cancel()
            await asyncio.gather(released, gone, return_exceptions=True)


class Engine(_Server):
    """A replica: /ready, and one answer for everything else."""

    def __init__(self, peers: Peers) -> None:
        super().__init__(peers)
        self.port = 0
        self.ready = True
        self.answer: Answer | Callable[[Seen], Answer] = Answer()
        self.reset = False
        """Read the request, then reset the connection: what a killed process leaves."""
        self.silent = False
        """Read the request and never answer."""

    @property
    def address(self) -> str:
        """As in EDS."""
        return f"127.0.0.1:{self.port}"

    async def open(self) -> None:
        """Listen on the same port as before, or a new one."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, limit=LINE_LIMIT_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if seen.path == "/ready":
            await self._send(Answer(status=200 if self.ready else 503), reader, writer)
            return
        self.seen.append(seen)
        if self.silent:
            await reader.read()
            raise ConnectionResetError
        if self.reset:
            sock: socket.socket = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            raise ConnectionResetError
        answer = self.answer if isinstance(self.answer, Answer) else self.answer(seen)
        await self._send(answer, reader, writer)


class Picker(_Server):
    """The authorization service: answers with `destination` and `pick`, or as told."""

    def __init__(self, peers: Peers, path: Path) -> None:
        super().__init__(peers)
        self._path = path
        self.destination = ""
        self.pick = "pick-1"
        self.refuse: Answer | None = None
        self.hang = False

    async def open(self) -> None:
        """Listen on the socket."""
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._accept, self._path, limit=LINE_LIMIT_BYTES)

    async def _serve(self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.seen.append(seen)
        if self.hang:
            # No answer ever: the caller gives up and closes.
            await reader.read()
            raise ConnectionResetError
        if self.refuse is not None:
            await self._send(self.refuse, reader, writer)
            return
        asked = [seen.headers.get(name) for name in (names.HEADER_KEY_SESSION, names.HEADER_KEY_CONVERSATION)]
        headers = {names.HEADER_DESTINATION: self.destination, names.HEADER_PICK: self.pick}
        headers[names.HEADER_MEMO] = f"{self.destination} " + "\t".join(each for each in asked if each)
        await self._send(Answer(headers=headers, chunks=()), reader, writer)

    def last(self) -> Seen:
        """The last question, once there is one."""
        wait_until(lambda: self.seen, timeout_s=10, describe="a question to the picker", interval_s=0.01)
        return self.seen[-1]


async def _read_request(reader: asyncio.StreamReader) -> Seen | None:
    line = await reader.readline()
    if not line:
        return None
    method, path, _ = line.decode("latin-1").split(" ")
    headers: dict[str, str] = {}
    while (raw := (await reader.readline()).decode("latin-1").rstrip("\r\n")) != "":
        name, _, value = raw.partition(":")
        headers[name.lower()] = value.strip()
    return Seen(method, path, headers, await _read_body(reader, headers))


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding") == "chunked":
        parts = []
        while (size := int(await reader.readline(), 16)) > 0:
            parts.append(await reader.readexactly(size))
            await reader.readline()
        await reader.readline()
        return b"".join(parts)
    return await reader.readexactly(int(headers.get("content-length", "0")))
