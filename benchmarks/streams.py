"""Many streams at once against a server process: a load generator that only counts, and a floor to compare with.

The floor is the same ASGI server with an application that sends events of the same size at the same pace and knows
nothing: what the simulated engine uses beyond it is the price of its model. Not here: how engines are started.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import psutil
import uvloop

SPARE_S = 60.0
"""What a load may take beyond twice its time."""
CONTENT_BYTES_PER_TOKEN = 4
_PACE = "BENCH_EVENTS_PER_S"
_CHUNK = "BENCH_TOKENS_PER_EVENT"
_CONTENT = re.compile(rb'"content":"([^"]*)"')

Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the client asks for.

    Attributes:
        streams: Streams at the same time.
        tokens: Tokens of each.
        tokens_per_s: Pace that each is expected to have, in wall time.
        events_per_s: Events a second in which they come.
    """

    streams: int
    tokens: int
    tokens_per_s: float
    events_per_s: float


@dataclass(slots=True)
class Stream(asyncio.Protocol):
    """One request; counts events and tokens and remembers when the first and the last came."""

    request: bytes
    done: asyncio.Future[None]
    sent_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0
    events: int = 0
    content_bytes: int = 0
    head: bytearray = field(default_factory=bytearray)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self.sent_s = time.perf_counter()
        # uvloop's transports are of no class of asyncio's.
        cast("asyncio.WriteTransport", transport).write(self.request)

    def data_received(self, data: bytes) -> None:
        """Count the events of a piece; a status other than 200 fails the stream."""
        now_s = time.perf_counter()
        if len(self.head) < 12:
            self.head += data[:12]
            if len(self.head) >= 12 and b" 200" not in self.head[:12] and not self.done.done():
                self.done.set_exception(RuntimeError(f"a stream was answered {data[:500]!r}"))
        # An event that is cut between two pieces loses its text here; see `complete`.
        found = _CONTENT.findall(data)
        self.content_bytes += sum(map(len, found))
        self.events += sum(map(bool, found))
        if self.content_bytes and not self.first_s:
            self.first_s = now_s
        self.last_s = now_s

    def connection_lost(self, _: Exception | None) -> None:
        """The server closes after the last event, as asked."""
        if not self.done.done():
            self.done.set_result(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """What came of a load.

    Attributes:
        slowest_s: First token to last of the slowest stream.
        events: Events with tokens.
        wall_s: First token of all to the last of all.
        cpu: Share of a core that the server used.
        others_cpu: Share of a core that neither server nor client used: whoever disturbed the measurement.
        peak_bytes: Largest resident size of the server.
    """

    slowest_s: float
    events: int
    wall_s: float
    cpu: float
    others_cpu: float
    peak_bytes: int


def cores() -> tuple[int, int]:
    """One core for the server, another for the client; the same when there is but one."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[min(1, len(usable) - 1)]


def run_load(address: Address, pid: int, load: Load) -> Streamed:
    """Send the load from a core of its own to a server on another, and wait for the last token."""
    usable = os.sched_getaffinity(0)
    server_core, client_core = cores()
    os.sched_setaffinity(pid, {server_core})
    os.sched_setaffinity(0, {client_core})
    process = psutil.Process(pid)
    before_s, own_s, all_s, begin_s = cpu_s(process), time.process_time(), machine_cpu_s(), time.perf_counter()
    try:
        streams = uvloop.run(_send(address, load))
        took_s, all_s = time.perf_counter() - begin_s, machine_cpu_s() - all_s
        used_s, own_s = cpu_s(process) - before_s, time.process_time() - own_s
    finally:
        os.sched_setaffinity(0, usable)
    _check(streams, load)
    return Streamed(
        slowest_s=max(stream.last_s - stream.first_s for stream in streams),
        events=sum(stream.events for stream in streams),
        wall_s=max(stream.last_s for stream in streams) - min(stream.first_s for stream in streams),
        cpu=used_s / took_s,
        others_cpu=max(all_s - used_s - own_s, 0.0) / took_s,
        peak_bytes=peak_bytes(pid),
    )


async def _send(address: Address, load: Load) -> Sequence[Stream]:
    async with asyncio.timeout(SPARE_S + 2 * load.tokens / load.tokens_per_s):
        streams = [await ask(address, f"stream {n}: count", load.tokens) for n in range(load.streams)]
        await asyncio.gather(*(stream.done for stream in streams))
    return streams


async def ask(address: Address, content: str, tokens: int, *, model: str = "m") -> Stream:
    """Send one streaming chat completion of exactly so many tokens."""
    body = json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
        }
    ).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    loop = asyncio.get_running_loop()
    stream = Stream(head.encode() + body, loop.create_future())
    await loop.create_connection(lambda: stream, *address)
    return stream


def _check(streams: Sequence[Stream], load: Load) -> None:
    """Fail on streams that lack text; a few events may be cut in two and so not be seen."""
    got_bytes = sum(stream.content_bytes for stream in streams)
    wanted_bytes = load.streams * load.tokens * CONTENT_BYTES_PER_TOKEN
    if not 0.995 * wanted_bytes <= got_bytes <= wanted_bytes:
        raise RuntimeError(f"the streams brought {got_bytes:,} bytes of text, {wanted_bytes:,} were asked for")


def peak_bytes(pid: int) -> int:
    """The largest resident size so far, as the kernel remembers it."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)[0]) * 1024


def cpu_s(process: psutil.Process) -> float:
    """CPU time of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def machine_cpu_s() -> float:
    """CPU time that everybody on this machine has used so far."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


@contextmanager
def running(command: Sequence[str], log: Path, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A process for the length of the block."""
    with log.open("wb") as out:
        popen = subprocess.Popen(
            command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})}
        )
    try:
        yield popen
    finally:
        popen.kill()
        popen.wait(10)


# --- the floor -------------------------------------------------------------------------------------------------------

_waiters: set[asyncio.Future[None]] = set()
_ticker: list[asyncio.Task[None]] = []


async def _tick() -> None:
    """Wake all streams together at the pace asked for: one timer is cheaper than one for each."""
    loop, pace_s = asyncio.get_running_loop(), 1 / float(os.environ[_PACE])
    next_s = loop.time()
    while True:
        next_s += pace_s
        await asyncio.sleep(next_s - loop.time())
        for waiter in _waiters:
            if not waiter.done():
                waiter.set_result(None)
        _waiters.clear()


async def floor_app(scope: dict[str, object], receive: object, send: object) -> None:
    """Send events of an engine's size at the pace of the environment, for as many tokens as the request wants."""
    if scope["type"] != "http":
        return
    if not _ticker:
        _ticker.append(asyncio.get_running_loop().create_task(_tick()))
    message = await receive()  # type: ignore[operator]
    tokens, chunk = json.loads(message["body"])["max_tokens"], float(os.environ[_CHUNK])
    start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
    await send(start)  # type: ignore[operator]
    sent = number = 0
    while sent < tokens:
        waiter = asyncio.get_running_loop().create_future()
        _waiters.add(waiter)
        await waiter
        number += 1
        upto = min(int(number * chunk), tokens)
        event = _event("sim " * (upto - sent))
        sent = upto
        await send({"type": "http.response.body", "body": event, "more_body": True})  # type: ignore[operator]
    await send({"type": "http.response.body", "body": b""})  # type: ignore[operator]


_BEFORE, _, _AFTER = (
    b'data: {"id":"00000000000000000000000000000000","object":"chat.completion.chunk","created":1800000000,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":"|"},"logprobs":null,"finish_reason":null,"matched_stop":null}]}\n\n'
).partition(b"|")


def _event(text: str) -> bytes:
    return _BEFORE + text.encode() + _AFTER


@contextmanager
def floor(port: int, log: Path, load: Load) -> Iterator[subprocess.Popen[bytes]]:
    """The floor as a process, for a load."""
    command = [sys.executable, "-m", "uvicorn", "benchmarks.streams:floor_app", "--lifespan", "off", "--host"]
    command += ["127.0.0.1", "--port", str(port), "--log-level", "warning", "--no-access-log"]
    env = {_PACE: str(load.events_per_s), _CHUNK: str(load.tokens_per_s / load.events_per_s)}
    with running(command, log, env) as popen:
        yield popen
