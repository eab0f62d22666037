"""The router's price: CPU per request and per chunk beside SMG and Envoy alone, the time of a decision, memory.

Router processes have one core, engines and clients another. Each round starts every router anew, all of them side by
side; then one after the other gets the same load for a second or two, in reverse order every other time. A ratio is
that of two routers' turns that follow each other, and the median of all turns of all rounds is shown. CPU is what all
of a router's threads ran for: it says nearly the same on a busy machine, where answer times do not.
Run it with `python -m benchmarks.router`, on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.common import RESULTS, Row, say, show, write_results
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
from benchmarks.router_variants import MEMORY, Router, Variant, envoy_alone, smg_sticky, smg_venv

from sglpool.sandbox.binaries import cache_root

MIB = 2**20
ENGINES = 4
OWN, SMG, ENVOY = "sglpool", "SMG sticky", "Envoy alone"
SMALL, LARGE, CHUNKS, PACED, KEYLESS = "small", "large", "chunks", "paced", "keyless"
MAX_LARGE, MAX_SMALL, MAX_CHUNK = 0.35, 1.2, 1.25
MAX_DECISION_MS = 1.0
MAX_PICKER_MIB = 80.0
WARM_S = 0.5
STREAM_WARM_S, STREAM_TAIL_S = 1.0, 0.5
CHUNKS_PER_S = 50
"""Of each stream (router_worker.c)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the command line decides.

    Attributes:
        rounds: How often every router is started.
        turns: How often each is measured then.
        seconds: Length of each load.
        decision_rounds: How often the picker's decisions are measured.
        decision_s: Length of that.
        conversations: Conversations that the picker knows then.
        replicas: Replicas among which it chooses then.
        decisions_per_s: Questions a second.
    """

    rounds: int
    turns: int
    seconds: float
    decision_rounds: int
    decision_s: float
    conversations: int = 20_000
    replicas: int = 50
    decisions_per_s: int = 2_000


FULL = Settings(rounds=3, turns=5, seconds=1.5, decision_rounds=3, decision_s=15.0)
QUICK = Settings(rounds=1, turns=1, seconds=1.0, decision_rounds=1, decision_s=3.0, conversations=2_000)


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


Turn = Mapping[str, Mapping[str, Measured]]
"""By router, then by load."""


def loads(settings: Settings) -> dict[str, Load]:
    """What every router is given."""
    whole = partial(Load, sessions=1024, seconds=settings.seconds, warm_s=WARM_S)
    # No stream ends while it is measured, and all do soon after.
    tokens = round(CHUNKS_PER_S * (STREAM_WARM_S + settings.seconds + STREAM_TAIL_S))
    stream = chat_request(small_body(stream=True, max_tokens=tokens))
    return {
        SMALL: whole(request=chat_request(small_body()), connections=32),
        LARGE: whole(request=chat_request(large_body()), connections=8),
        CHUNKS: whole(request=stream, connections=200, urgent=True, warm_s=STREAM_WARM_S),
        PACED: whole(request=chat_request(small_body()), connections=32, rate=200, urgent=True),
    }


def measure_round(settings: Settings, cache: Path) -> list[Turn]:
    """Every load on every router, so many times."""
    variants: dict[str, Variant] = {
        ENVOY: envoy_alone,
        SMG: partial(smg_sticky, venv=smg_venv(cache)),
        OWN: own_router,
    }
    with engines(cache, ENGINES) as peers, ExitStack() as stack:
        routers = {}
        for name, variant in variants.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="router-", dir=MEMORY)))
            routers[name] = stack.enter_context(variant(folder, peers.addresses))
        return [_measure_turn(settings, cache, routers, peers.pid, turn) for turn in range(settings.turns)]


def _measure_turn(settings: Settings, cache: Path, routers: Mapping[str, Router], engines_pid: int, turn: int) -> Turn:
    found: dict[str, dict[str, Measured]] = {name: {} for name in routers}
    for what, load in loads(settings).items():
        for name in list(routers)[:: -1 if turn % 2 else 1]:
            found[name][what] = _measure(cache, routers[name], load, engines_pid)
    keyless = replace(loads(settings)[LARGE], request=chat_request(large_body(), session=False))
    found[OWN][KEYLESS] = _measure(cache, routers[OWN], keyless, engines_pid)
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


def rows(settings: Settings, turns: Sequence[Turn], decided: Sequence[Decided], floors: Sequence[float]) -> list[Row]:
    """The figures, with goals where there are any."""
    return [
        *_ratio("400 KB request", LARGE, turns, SMG, MAX_LARGE),
        *_ratio("small request", SMALL, turns, SMG, MAX_SMALL),
        *_ratio("SSE chunk", CHUNKS, turns, ENVOY, MAX_CHUNK),
        *_decision_rows(settings, decided, floors),
        _cpu("SSE chunk, CPU of the router", CHUNKS, turns, SMG),
        _cpu("400 KB request, CPU of the router", LARGE, turns, ENVOY),
        _cpu("small request, CPU of the router", SMALL, turns, ENVOY),
        Row(
            figure="400 KB request without any key, read by Envoy for its fingerprint, CPU",
            value=_median(turns, lambda each: each[OWN][KEYLESS].total_us),
            unit="us",
            peer="with a key",
            peer_value=_median(turns, lambda each: each[OWN][LARGE].total_us),
        ),
        _answer_time(turns, SMG),
        _answer_time(turns, ENVOY),
        Row(
            figure="SSE chunk, engine to client, median",
            value=_median(turns, lambda each: each[OWN][CHUNKS].loaded.chunk_p50_us),
            unit="us",
            peer=ENVOY,
            peer_value=_median(turns, lambda each: each[ENVOY][CHUNKS].loaded.chunk_p50_us),
        ),
    ]


def _ratio(figure: str, load: str, turns: Sequence[Turn], peer: str, goal: float) -> list[Row]:
    """The ratio that has a goal, then its two sides, and how much of ours is the picker's."""
    ratio = _median(turns, lambda each: each[OWN][load].total_us / each[peer][load].total_us)
    return [
        Row(figure=f"{figure}, CPU, times that of {peer}", value=ratio, unit="x", goal=goal),
        _cpu(f"{figure}, CPU of the router", load, turns, peer),
        Row(
            figure=f"{figure}, CPU of the picker in it",
            value=_median(turns, lambda each: each[OWN][load].cpu_us["picker"]),
            unit="us",
        ),
    ]


def _cpu(figure: str, load: str, turns: Sequence[Turn], peer: str) -> Row:
    own = _median(turns, lambda each: each[OWN][load].total_us)
    other = _median(turns, lambda each: each[peer][load].total_us)
    return Row(figure=figure, value=own, unit="us", peer=peer, peer_value=other)


def _answer_time(turns: Sequence[Turn], peer: str) -> Row:
    return Row(
        figure="small request, 200 a second, median of the answer time",
        value=_median(turns, lambda each: each[OWN][PACED].loaded.p50_us),
        unit="us",
        peer=peer,
        peer_value=_median(turns, lambda each: each[peer][PACED].loaded.p50_us),
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


def _median(turns: Sequence[Turn], value: Callable[[Turn], float]) -> float:
    return median(value(each) for each in turns)


def measure(settings: Settings, cache: Path) -> list[Row]:
    """Measure everything, and leave nothing behind but what was compiled and installed."""
    turns: list[Turn] = []
    for number in range(settings.rounds):
        say(f"round {number + 1} of {settings.rounds}")
        turns += measure_round(settings, cache)
    say("decisions")
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
    return rows(settings, turns, decided, floors)


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
        values = {
            "rounds": settings.rounds,
            "turns": settings.turns,
            "seconds": settings.seconds,
            "decisionSeconds": settings.decision_s,
        }
        write_results(options.out or RESULTS / "router.json", benchmark="router", settings=values, rows=found)


if __name__ == "__main__":
    main()
