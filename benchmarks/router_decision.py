"""How long a decision takes: the picker's own socket, asked at a constant rate by clients that never wait for others.

Questions are timed from when they were due, so a picker that stands still makes all that come meanwhile late. Requests
end as they do in life: by a line in the access log. Not here: requests through Envoy (`router`).
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.router_own import own_router
from benchmarks.router_peers import MARK, BenchmarkError, Load, Loaded, engines, run_load
from benchmarks.router_variants import MEMORY, await_socket, started

from sglpool.routing import pickerconfig as names

CONNECTIONS = 32
HOLD_S = 0.1
_BUCKET = re.compile(r'^sglpool_router_decision_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What was found.

    Attributes:
        p50_ms: Question due to answer read, median.
        p99_ms: The same, 99th percentile.
        own_p99_ms: The picker's own histogram: question read to answer written.
        cpu_us: CPU of the picker for each question, with all that it does besides.
        conversations: Conversations that it knew.
        rss_bytes: Its resident memory then.
    """

    p50_ms: float
    p99_ms: float
    own_p99_ms: float
    cpu_us: float
    conversations: int
    rss_bytes: int


def decide(cache: Path, *, replicas: int, conversations: int, rate: int, seconds: float) -> tuple[Decided, float]:
    """The picker under questions, and the p99 in ms of one that knows nothing."""
    load = Load(
        request=_question(),
        connections=CONNECTIONS,
        sessions=conversations,
        seconds=seconds,
        rate=rate,
        urgent=True,
        # Every conversation is asked about once before it counts.
        warm_s=1.25 * conversations / rate + 2,
    )
    with engines(cache, replicas) as peers, tempfile.TemporaryDirectory(prefix="router-", dir=MEMORY) as name:
        folder = Path(name)
        with own_router(folder, peers.addresses) as router:
            reported = replace(load, access_log=folder / names.ACCESS_LOG, hold_s=HOLD_S)
            before = decision_buckets(router.state)
            loaded = run_load(
                cache, folder, str(folder / names.AUTHZ_SOCKET), reported, router.cpu_s, [*router.pids(), peers.pid]
            )
            after = decision_buckets(router.state)
            _check_lines(router.state)
            known = json.loads(_read(f"{router.state}/state"))["conversations"]
            found = Decided(
                p50_ms=loaded.p50_us / 1000,
                p99_ms=loaded.p99_us / 1000,
                own_p99_ms=1000 * _percentile(before, after, 99),
                cpu_us=1e6 * loaded.spent[0] / max(1, loaded.requests),
                conversations=known,
                rss_bytes=router.rss_bytes()["picker"],
            )
    if found.conversations < conversations:
        raise BenchmarkError(f"the picker knows {found.conversations} conversations instead of {conversations}")
    return found, _floor(cache, load).p99_us / 1000


def _floor(cache: Path, load: Load) -> Loaded:
    with tempfile.TemporaryDirectory(prefix="router-", dir=MEMORY) as name:
        folder = Path(name)
        path = folder / names.AUTHZ_SOCKET
        with started("floor", [sys.executable, "-m", "benchmarks.router_floor", str(path)], folder) as floor:
            await_socket(path)
            return run_load(cache, folder, str(path), replace(load, warm_s=1.0), tuple, [floor.pid])


def _question() -> bytes:
    """What Envoy asks, byte for byte but for the session."""
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        "host: bench.example",
        "content-length: 0",
        f"{names.HEADER_REQUEST_ID}: 6f1c0a52-4f0e-4c4e-9d1b-0000{MARK}",
        f"{names.HEADER_LENGTH}: 400000",
        f"{names.HEADER_KEY_SESSION}: 5f0d8c1e-6d0b-4b0a-9f0e-0000{MARK}",
        "x-envoy-expected-rq-timeout-ms: 250",
        "x-envoy-internal: true",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def decision_buckets(state: str) -> dict[float, float]:
    """Decisions of a picker so far by the time that they took: within how many seconds, how many."""
    return {float(bound): float(count) for bound, count in _BUCKET.findall(_read(f"{state}/metrics"))}


def _check_lines(state: str) -> None:
    """Slots that are never given back would be a load of their own."""
    if not re.search(r"^sglpool_router_bad_log_lines_total 0\.0$", _read(f"{state}/metrics"), re.MULTILINE):
        raise BenchmarkError("the picker cannot read how the requests ended: router_load.c writes other fields")


def _percentile(before: dict[float, float], after: dict[float, float], percent: float) -> float:
    """Upper bound of the bucket in which the percentile lies."""
    grown = {bound: count - before.get(bound, 0.0) for bound, count in sorted(after.items())}
    total = max(grown.values(), default=0.0)
    return next((bound for bound, count in grown.items() if total and count >= total * percent / 100), float("inf"))


def _read(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as response:
        text: str = response.read().decode()
    return text
