"""The router's price: CPU per request and per chunk beside SMG and Envoy alone, the time of a decision, memory.

Router processes have one core, engines and clients another. Each round starts every router anew, in reverse order every
other time; a ratio is that of the two routers within one round, and the median of the rounds is shown. CPU is user and
system time of all of a router's processes: it says the same on a busy machine, where answer times do not.
Run it with `python -m benchmarks.router`, on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.common import RESULTS, Row, show, write_results
from benchmarks.router_decision import Decided, decide, decision_buckets
from benchmarks.router_own import own_router
from benchmarks.router_peers import (
    BenchmarkError,
    Load,
    Loaded,
    chat_request,
    engines,
    large_body,
    run_load,
    small_body,
)
from benchmarks.router_variants import Router, Variant, envoy_alone, smg_sticky, smg_venv

from sglpool.sandbox.binaries import cache_root

MIB = 2**20
ENGINES = 4
OWN, SMG, ENVOY = "sglpool", "SMG sticky", "Envoy alone"
SMALL, LARGE, CHUNKS, PACED, KEYLESS = "small", "large", "chunks", "paced", "keyless"
MAX_LARGE, MAX_SMALL, MAX_CHUNK = 0.35, 1.2, 1.25
MAX_DECISION_MS = 1.0
MAX_PICKER_MIB = 80.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the command line decides.

    Attributes:
        rounds: How often every router is measured.
        seconds: Length of each load.
        decision_rounds: How often the picker's decisions are measured.
        decision_s: Length of that.
        conversations: Conversations that the picker knows then.
        replicas: Replicas among which it chooses then.
        decisions_per_s: Questions a second.
    """

    rounds: int
    seconds: float
    decision_rounds: int
    decision_s: float
    conversations: int = 20_000
    replicas: int = 50
    decisions_per_s: int = 2_000


FULL = Settings(rounds=5, seconds=3.0, decision_rounds=3, decision_s=15.0)
QUICK = Settings(rounds=1, seconds=1.0, decision_rounds=1, decision_s=3.0, conversations=2_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One load on one router.

    Attributes:
        loaded: What clients saw.
        cpu_us: CPU of the router per request (per chunk of a stream), by process.
    """

    loaded: Loaded
    cpu_us: Mapping[str, float]

    @property
    def total_us(self) -> float:
        """CPU of all its processes."""
        return sum(self.cpu_us.values())


Round = Mapping[str, Mapping[str, Measured]]
"""By router, then by load."""


def loads(settings: Settings) -> dict[str, Load]:
    """What every router is given."""
    whole = partial(Load, sessions=1024, seconds=settings.seconds)
    stream = chat_request(small_body(stream=True, max_tokens=int(50 * settings.seconds) + 150))
    return {
        SMALL: whole(request=chat_request(small_body()), connections=32),
        LARGE: whole(request=chat_request(large_body()), connections=8),
        CHUNKS: whole(request=stream, connections=200, urgent=True),
        PACED: whole(request=chat_request(small_body()), connections=32, rate=200, urgent=True),
    }


def measure_round(settings: Settings, cache: Path, number: int) -> dict[str, dict[str, Measured]]:
    """Every load on every router, once."""
    variants: dict[str, Variant] = {
        ENVOY: envoy_alone,
        SMG: partial(smg_sticky, venv=smg_venv(cache)),
        OWN: own_router,
    }
    found: dict[str, dict[str, Measured]] = {}
    with engines(cache, ENGINES) as peers:
        for name in list(variants)[:: -1 if number % 2 else 1]:
            wanted = loads(settings)
            if name == OWN:
                keyless = chat_request(large_body(), session=False)
                wanted[KEYLESS] = Load(request=keyless, connections=8, sessions=1024, seconds=settings.seconds)
            with (
                tempfile.TemporaryDirectory(prefix="router-") as folder,
                variants[name](Path(folder), peers.addresses) as own,
            ):
                found[name] = {what: _measure(cache, own, load, peers.pid) for what, load in wanted.items()}
    return found


def _measure(cache: Path, router: Router, load: Load, engines_pid: int) -> Measured:
    before = _decisions(router)
    loaded = run_load(cache, router.folder, router.address, load, router.cpu_s, [*router.pids(), engines_pid])
    decided = _decisions(router) - before
    if router.state and decided < loaded.requests:
        # Envoy goes on without the picker when that takes too long: a router that decides nothing is a cheap one.
        raise BenchmarkError(f"the picker decided {decided:.0f} of {loaded.requests} requests")
    units = max(1, loaded.chunks or loaded.requests)
    cpu_us = {name: 1e6 * spent / units for name, spent in zip(router.processes, loaded.spent, strict=True)}
    return Measured(loaded=loaded, cpu_us=cpu_us)


def _decisions(router: Router) -> float:
    return max(decision_buckets(router.state).values(), default=0.0) if router.state else 0.0


# --- figures ---------------------------------------------------------------------------------------------------------


def rows(settings: Settings, rounds: Sequence[Round], decided: Sequence[Decided], floors: Sequence[float]) -> list[Row]:
    """The figures, with goals where there are any."""
    return [
        *_ratio("400 KB request", LARGE, rounds, SMG, MAX_LARGE),
        *_ratio("small request", SMALL, rounds, SMG, MAX_SMALL),
        *_ratio("SSE chunk", CHUNKS, rounds, ENVOY, MAX_CHUNK),
        *_decision_rows(settings, decided, floors),
        _cpu("SSE chunk, CPU of the router", CHUNKS, rounds, SMG),
        _cpu("400 KB request, CPU of the router", LARGE, rounds, ENVOY),
        _cpu("small request, CPU of the router", SMALL, rounds, ENVOY),
        Row(
            figure="400 KB request without any key, read by Envoy for its fingerprint, CPU",
            value=_median(rounds, lambda each: each[OWN][KEYLESS].total_us),
            unit="us",
            peer="with a key",
            peer_value=_median(rounds, lambda each: each[OWN][LARGE].total_us),
        ),
        _answer_time(rounds, SMG),
        _answer_time(rounds, ENVOY),
        Row(
            figure="SSE chunk, engine to client, median",
            value=_median(rounds, lambda each: each[OWN][CHUNKS].loaded.chunk_p50_us),
            unit="us",
            peer=ENVOY,
            peer_value=_median(rounds, lambda each: each[ENVOY][CHUNKS].loaded.chunk_p50_us),
        ),
    ]


def _ratio(figure: str, load: str, rounds: Sequence[Round], peer: str, goal: float) -> list[Row]:
    """The ratio that has a goal, then its two sides, and how much of ours is the picker's."""
    ratio = _median(rounds, lambda each: each[OWN][load].total_us / each[peer][load].total_us)
    return [
        Row(figure=f"{figure}, CPU, times that of {peer}", value=ratio, unit="x", goal=goal),
        _cpu(f"{figure}, CPU of the router", load, rounds, peer),
        Row(
            figure=f"{figure}, CPU of the picker in it",
            value=_median(rounds, lambda each: each[OWN][load].cpu_us["picker"]),
            unit="us",
        ),
    ]


def _cpu(figure: str, load: str, rounds: Sequence[Round], peer: str) -> Row:
    own = _median(rounds, lambda each: each[OWN][load].total_us)
    other = _median(rounds, lambda each: each[peer][load].total_us)
    return Row(figure=figure, value=own, unit="us", peer=peer, peer_value=other)


def _answer_time(rounds: Sequence[Round], peer: str) -> Row:
    return Row(
        figure="small request, 200 a second, median of the answer time",
        value=_median(rounds, lambda each: each[OWN][PACED].loaded.p50_us),
        unit="us",
        peer=peer,
        peer_value=_median(rounds, lambda each: each[peer][PACED].loaded.p50_us),
    )


def _decision_rows(settings: Settings, decided: Sequence[Decided], floors: Sequence[float]) -> list[Row]:
    load = f"{settings.decisions_per_s} a second, {settings.replicas} replicas, {settings.conversations} conversations"
    return [
        Row(
            figure=f"decision, asked on the socket, p99: {load}",
            value=median(each.p99_ms for each in decided),
            unit="ms",
            goal=MAX_DECISION_MS,
            peer="a picker that knows nothing",
            peer_value=median(floors),
        ),
        Row(figure="the same, median", value=median(each.p50_ms for each in decided), unit="ms"),
        Row(
            figure="the same, p99 as the picker itself counts it, at most",
            value=median(each.own_p99_ms for each in decided),
            unit="ms",
        ),
        Row(figure="the same, CPU of the picker", value=median(each.cpu_us for each in decided), unit="us"),
        Row(
            figure=f"picker's resident memory with {min(each.conversations for each in decided)} conversations",
            value=max(each.rss_bytes for each in decided) / MIB,
            unit="MiB",
            goal=MAX_PICKER_MIB,
        ),
    ]


def _median(rounds: Sequence[Round], value: Callable[[Round], float]) -> float:
    return median(value(each) for each in rounds)


def measure(settings: Settings, cache: Path) -> list[Row]:
    """Measure everything, and leave nothing behind but what was compiled and installed."""
    rounds = []
    for number in range(settings.rounds):
        _say(f"round {number + 1} of {settings.rounds}")
        rounds.append(measure_round(settings, cache, number))
    _say("decisions")
    decided, floors = [], []
    for _ in range(settings.decision_rounds):
        one, floor_ms = decide(
            cache,
            replicas=settings.replicas,
            conversations=settings.conversations,
            rate=settings.decisions_per_s,
            seconds=settings.decision_s,
        )
        decided.append(one)
        floors.append(floor_ms)
    return rows(settings, rounds, decided, floors)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.router", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round: a smoke test, not a figure")
    parser.add_argument("--out", type=Path, help="file of results (default benchmarks/results/router.json)")
    options = parser.parse_args(arguments)
    settings = QUICK if options.quick else FULL
    found = measure(settings, cache_root(os.environ) / "bench")
    show("sglpool's router on one core", found)
    if options.out or not options.quick:
        values = {"rounds": settings.rounds, "seconds": settings.seconds, "decisionSeconds": settings.decision_s}
        write_results(options.out or RESULTS / "router.json", benchmark="router", settings=values, rows=found)


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
