"""Many streams at once against one server process: a load generator that only counts, and a floor to compare with.

The floor is the same ASGI server with an application that sends events of the same size at the same pace and knows
nothing: what the simulated engine uses beyond it is the price of its model. Not here: how engines are started.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import uvloop

SERVER_CORE = 0
CLIENT_CORE = 1
START_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the client asks for.

    Attributes:
        streams: Streams at the same time.
        tokens: Tokens of each.
        tokens_per_s: Pace of each by the model's clock, in wall time.
    """

    streams: int
    tokens: int
    tokens_per_s: float


@dataclass(slots=True)
class Stream(asyncio.Protocol):
    """One request; counts events and remembers when the first and the last came."""

    request: bytes
    done: asyncio.Future[None]
    events: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    head: bytearray = field(default_factory=bytearray)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        """Count the events of a piece; a status other than 200 fails the stream."""
        now_s = time.perf_counter()
        if not self.first_s and b"data: " in data:
            self.first_s = now_s
        if len(self.head) < 12:
            self.head += data[:12]
            if len(self.head) >= 12 and b" 200" not in self.head[:12] and not self.done.done():
                self.done.set_exception(RuntimeError(f"a stream was answered {bytes(self.head)!r}"))
        self.events += data.count(b"data: ")
        self.last_s = now_s

    def connection_lost(self, _: Exception | None) -> None:
        """The server closes after the last event, as asked."""
        if not self.done.done():
            self.done.set_result(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """What came of a load.

    Attributes:
        behind: How much longer than by the model's clock the slowest stream took, as a share of its time.
        events: Events in all.
        cpu_s: CPU time of the server meanwhile.
        wall_s: First event to last.
        peak_bytes: Largest resident size of the server.
    """

    behind: float
    events: int
    cpu_s: float
    wall_s: float
    peak_bytes: int


def run_load(address: tuple[str, int], pid: int, load: Load) -> Streamed:
    """Send the load from a core of its own to a server on another, and wait for the last token."""
    os.sched_setaffinity(pid, {SERVER_CORE})
    before_s = _cpu_s(pid)
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {CLIENT_CORE})
    try:
        streams = uvloop.run(_send(address, load))
    finally:
        os.sched_setaffinity(0, mine)
    expected_s = (load.tokens - 1) / load.tokens_per_s
    slowest_s = max(stream.last_s - stream.first_s for stream in streams)
    return Streamed(
        behind=slowest_s / expected_s - 1,
        events=sum(stream.events for stream in streams),
        cpu_s=_cpu_s(pid) - before_s,
        wall_s=max(stream.last_s for stream in streams) - min(stream.first_s for stream in streams),
        peak_bytes=peak_bytes(pid),
    )


async def _send(address: tuple[str, int], load: Load) -> Sequence[Stream]:
    loop = asyncio.get_running_loop()
    streams = []
    for number in range(load.streams):
        body = json.dumps(
            {
                "model": "m",
                "messages": [{"role": "user", "content": f"stream {number}: count"}],
                "max_tokens": load.tokens,
                "ignore_eos": True,
                "stream": True,
            }
        ).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
        )
        request = head.encode() + b"Content-Type: application/json\r\n\r\n" + body
        stream = Stream(request, loop.create_future())
        await loop.create_connection(lambda stream=stream: stream, *address)  # type: ignore[misc]
        streams.append(stream)
    limit_s = 60 + 4 * load.tokens / load.tokens_per_s
    await asyncio.wait_for(asyncio.gather(*(stream.done for stream in streams)), limit_s)
    return streams


def peak_bytes(pid: int) -> int:
    """The largest resident size so far, as the kernel remembers it."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)[0]) * 1024


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


@contextmanager
def process(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process for the length of the block."""
    with log.open("wb") as out:
        popen = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        yield popen
    finally:
        popen.send_signal(signal.SIGKILL)
        popen.wait(10)


async def floor_app(scope: dict[str, object], receive: object, send: object) -> None:
    """Send events of an engine's size at the pace in BENCH_PACE, for as many as the request wants."""
    if scope["type"] != "http":
        return
    message = await receive()  # type: ignore[operator]
    tokens = json.loads(message["body"])["max_tokens"]
    text = '"choices":[{"index":0,"delta":{"content":"sim "},"finish_reason":null}]'
    event = f'data: {{"id":"0","object":"chat.completion.chunk","created":1,"model":"m",{text}}}\n\n'.encode()
    start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
    await send(start)  # type: ignore[operator]
    pace_s = 1 / float(os.environ["BENCH_PACE"])
    begin_s = asyncio.get_running_loop().time()
    for number in range(tokens):
        await asyncio.sleep(begin_s + number * pace_s - asyncio.get_running_loop().time())
        await send({"type": "http.response.body", "body": event, "more_body": True})  # type: ignore[operator]
    await send({"type": "http.response.body", "body": b""})  # type: ignore[operator]


def floor_command(port: int) -> list[str]:
    """The floor as a process."""
    options = ["--host", "127.0.0.1", "--port", str(port), "--log-level", "warning", "--no-access-log"]
    return [sys.executable, "-m", "uvicorn", "benchmarks.streams:floor_app", "--lifespan", "off", *options]
