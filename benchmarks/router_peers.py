"""The engines and the clients of the router's benchmark: two small C programs, compiled here, on a core of their own.

Not here: the routers between them (`router_variants`).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from sglpool.routing.pickerconfig import ACCESS_LOG_FIELDS

FIRST_ENGINE = "127.0.0.11"
ENGINE_PORT = 31990
LARGE_BYTES = 400_000
MARK = "@@@@@@@@"
SESSION_HEADERS = ("x-claude-code-session-id", "x-smg-routing-key")
_HERE = Path(__file__).parent
_LIMIT_S = 120.0
_NICE = -15
_FAILED_SHARE = 0.001
_ENDED = {"status": "200", "flags": "-", "attempts": "1", "answer": "stop,1000,900,20,-"}
"""How requests of the clients of the picker end. The two fields before these name the pick and the engine."""


class BenchmarkError(RuntimeError):
    """A peer or a router did not do what the benchmark needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What clients do.

    Attributes:
        request: Text of the request, with MARK where a session's number belongs.
        connections: Connections at the same time.
        sessions: Different conversations; none has two requests at once.
        seconds: For how long it is measured.
        rate: Requests a second; 0: each connection sends the next one as soon as it has the answer.
        warm_s: For how long it runs before it is measured.
        access_log: File in which the clients of the picker report the end of their requests.
        hold_s: How long such a request takes.
        urgent: Run engines, router and clients `ahead` of all else.
    """

    request: bytes
    connections: int
    sessions: int
    seconds: float
    rate: int = 0
    warm_s: float = 1.0
    access_log: Path | None = None
    hold_s: float = 0.0
    urgent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What came of it.

    Attributes:
        requests: Answers within the measured time.
        chunks: Chunks of streams within the measured time.
        spent: What `read` of `run_load` grew by within the measured time.
        p50_us: Answer time from when the request was due, median.
        p99_us: The same, 99th percentile.
        max_us: The longest.
        chunk_p50_us: Time of a chunk from engine to client, median.
        chunk_p99_us: The same, 99th percentile.
    """

    requests: int
    chunks: int
    spent: tuple[float, ...]
    p50_us: float
    p99_us: float
    max_us: float
    chunk_p50_us: float
    chunk_p99_us: float


@dataclass(frozen=True, slots=True)
class Engines:
    """Engines that serve.

    Attributes:
        addresses: `ip:port` of each.
        pid: The process that all of them are.
    """

    addresses: list[str]
    pid: int


def cores() -> tuple[int, int]:
    """The core of the router and the core of everything else."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise BenchmarkError("the benchmark needs two cores: one for the router, one for engines and clients")
    return usable[1], usable[0]


def pinned(core: int, argv: Sequence[str]) -> list[str]:
    """The command, on one core, and before others there where that is allowed: what waits pays for cold caches."""
    return ["nice", "-n", str(_NICE), "taskset", "--cpu-list", str(core), *argv]


@contextmanager
def ahead(pids: Sequence[int]) -> Iterator[None]:
    """These processes run whenever they have something to do, before all else, where that is allowed.

    Else answer times on a machine that does other things too are times of waiting for a core, and chunks that wait are
    passed on several at once, for less CPU than they cost in life. Only for loads that leave the cores mostly idle.
    """
    threads = [int(thread.name) for pid in pids for thread in Path(f"/proc/{pid}/task").iterdir()]
    try:
        for thread in threads:
            os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        threads = []
    try:
        yield
    finally:
        for thread in threads:
            with suppress(ProcessLookupError):
                os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


def engine_address(number: int) -> str:
    """Address of an engine, without its port."""
    head, _, last = FIRST_ENGINE.rpartition(".")
    return f"{head}.{int(last) + number}"


def program(name: str, folder: Path) -> Path:
    """Compile one of the C programs, unless that very text has been compiled before."""
    source = _HERE / f"{name}.c"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise BenchmarkError("no C compiler: install gcc; engines and clients of this benchmark are written in C")
    binary = folder / f"{name}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    if not binary.exists():
        folder.mkdir(parents=True, exist_ok=True)
        draft = binary.with_suffix(".new")
        subprocess.run([compiler, "-O2", "-o", str(draft), str(source)], check=True)
        draft.replace(binary)
    return binary


@contextmanager
def engines(folder: Path, count: int) -> Iterator[Engines]:
    """So many engines for the length of the block. `folder` keeps what was compiled."""
    command = [str(program("router_worker", folder)), FIRST_ENGINE, str(count), str(ENGINE_PORT)]
    process = subprocess.Popen(pinned(cores()[1], command), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "listening\n":
            raise BenchmarkError(f"the engines do not listen at {FIRST_ENGINE}:{ENGINE_PORT} and above")
        yield Engines([f"{engine_address(number)}:{ENGINE_PORT}" for number in range(count)], process.pid)
    finally:
        process.kill()
        process.communicate(timeout=10)


def run_load(
    programs: Path,
    folder: Path,
    target: str,
    load: Load,
    read: Callable[[], tuple[float, ...]],
    servers: Sequence[int] = (),
) -> Loaded:
    """Run a load.

    Args:
        programs: What was compiled.
        folder: For the request's text.
        target: `ip:port`, or the path of a unix socket.
        load: The load.
        read: Called when the measured time begins, and when it ends.
        servers: Processes that serve it, for a load that is urgent.
    """
    request = folder / "request.http"
    request.write_bytes(load.request)
    numbers = (load.connections, load.sessions, load.seconds, load.rate, load.warm_s)
    command = [str(program("router_load", programs)), target, str(request), *map(str, numbers)]
    if load.access_log is not None:
        rest = "\t".join(_ENDED[name] for name, _ in ACCESS_LOG_FIELDS[2:])
        command += [str(load.access_log), str(round(load.hold_s * 1000)), rest]
    process = subprocess.Popen(pinned(cores()[1], command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        with ahead([*servers, process.pid]) if load.urgent else nullcontext():
            begin = _read_at(process, "begin", read)
            end = _read_at(process, "end", read)
            # Not by communicate(): what readline() has buffered already would be lost.
            text = process.stdout.readline()
        _, errors = process.communicate(timeout=_LIMIT_S)
    finally:
        process.kill()
        process.wait(timeout=10)
    if process.returncode:
        raise BenchmarkError(f"the clients ended with {process.returncode}: {errors}")
    found = json.loads(text)
    if found["failed"] > max(2, _FAILED_SHARE * found["requests"]):
        raise BenchmarkError(f"{found['failed']} of {found['requests']} requests failed, first: {found['failure']}")
    del found["failed"], found["failure"], found["late"], found["p999_us"]
    return Loaded(spent=tuple(b - a for a, b in zip(begin, end, strict=True)), **found)


def _read_at(process: subprocess.Popen[str], word: str, read: Callable[[], tuple[float, ...]]) -> tuple[float, ...]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if line != f"{word}\n":
        _, errors = process.communicate(timeout=_LIMIT_S)
        raise BenchmarkError(f"the clients ended before {word!r}: {errors}")
    return read()


def chat_request(body: Mapping[str, object], *, session: bool = True) -> bytes:
    """A chat completion as a harness sends it, with a session's header or without."""
    text = json.dumps(body, separators=(",", ":")).encode()
    headers = [
        "POST /v1/chat/completions HTTP/1.1",
        "host: bench.example",
        "user-agent: bench/1.0",
        "accept: application/json",
        "accept-encoding: gzip, deflate",
        "content-type: application/json",
        *(f"{name}: 5f0d8c1e-6d0b-4b0a-9f0e-0000{MARK}" for name in SESSION_HEADERS if session),
        f"content-length: {len(text)}",
    ]
    return "\r\n".join(headers).encode() + b"\r\n\r\n" + text


def small_body(**fields: object) -> dict[str, object]:
    """One question."""
    messages = [{"role": "user", "content": f"What does the test {MARK} want? Answer in one word."}]
    return {"model": "bench", **fields, "messages": messages}


def large_body(**fields: object) -> dict[str, object]:
    """A coding agent's conversation of 400 KB: a system prompt, tools, then files read and answers given."""
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    function = {
        "name": "read_file",
        "description": "Read a file.\n" + "It must exist. " * 100,
        "parameters": parameters,
    }
    messages: list[dict[str, object]] = [
        {"role": "system", "content": "You are a coding agent.\n" + 'Say what you do, then "do" it.\n' * 300},
        {"role": "user", "content": f"Make test {MARK} pass."},
    ]
    code = "".join(f'    if value_{n} == "text {n}":\n        return call_{n}(value)\n' for n in range(60))
    body: dict[str, object] = {"model": "bench", **fields, "tools": [{"type": "function", "function": function}] * 10}
    body["messages"] = messages
    size, number = len(json.dumps(body)), 0
    while size < LARGE_BYTES:
        call = {"name": "read_file", "arguments": json.dumps({"path": f"src/module_{number}.py"})}
        answer: dict[str, object] = {"role": "assistant", "content": f"I look at module {number}."}
        answer["tool_calls"] = [{"id": f"call_{number}", "type": "function", "function": call}]
        messages += [answer, {"role": "tool", "tool_call_id": f"call_{number}", "content": code}]
        size += len(json.dumps(messages[-2:]))
        number += 1
    return body
