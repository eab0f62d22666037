"""The sandbox's size and speed: one engine under 200 streams, sixteen replicas on two cores, the radix cache.

One engine on one core is read by a client on another, beside a server that sends the same events without a model.
Then a whole sandbox (control plane, node agent, operator) runs a pool of sixteen replicas, beside what it is without
the pool. Run it with `python -m benchmarks.sandbox`, on a machine that does nothing else.
"""

import argparse
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks import radix, replicas
from benchmarks.common import RESULTS, Row, say, show, write_results
from benchmarks.engines import decoded, engine, free_port, lag_s, rates, wait_open, wait_ready
from benchmarks.streams import Address, Load, Streamed, floor, run_load

MIB = 2**20
STREAMS = 200
TOKENS_PER_S = 40.0
MAX_BEHIND_PERCENT = 5.0
MAX_ENGINE_MIB = 60.0
MAX_SANDBOX_MIB = 4096.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the command line decides.

    Attributes:
        seconds: Length of each load of streams.
        pool: The pool of many replicas.
        turns: Operations on the radix cache.
    """

    seconds: float
    pool: replicas.Settings
    turns: int


FULL = Settings(
    seconds=30,
    pool=replicas.Settings(replicas=16, speed=60, streams=5, tokens=20_000, seconds=20, idle_s=15),
    turns=20_000,
)
QUICK = Settings(
    seconds=4,
    pool=replicas.Settings(replicas=4, speed=120, streams=2, tokens=5_000, seconds=3, idle_s=3),
    turns=2_000,
)


# --- one engine ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OneEngine:
    """One engine under many streams, and the floor.

    Attributes:
        load: What was asked.
        by_model_s: First token to last of a stream by the model's clock, in wall time.
        lag_s: The largest delay of a step in the last seconds, by the engine's own account.
        streamed: What came.
        floor: What came of the floor.
    """

    load: Load
    by_model_s: float
    lag_s: float
    streamed: Streamed
    floor: Streamed

    @property
    def behind_percent(self) -> float:
        """How much longer the slowest stream took than by the model's clock."""
        return (self.streamed.slowest_s / self.by_model_s - 1) * 100

    @property
    def floor_behind_percent(self) -> float:
        """The same of the floor, by the pace that it was told."""
        return (self.floor.slowest_s * self.load.tokens_per_s / (self.load.tokens - 1) - 1) * 100


def speed_for(*, speculative: bool) -> float:
    """The machine's speed at which every one of the streams gets its pace."""
    found = rates(speculative=speculative)
    return TOKENS_PER_S / found.accept_length * found.decode_s(STREAMS)


def load_for(seconds: float, *, speculative: bool) -> Load:
    """The streams, and the events in which their tokens come."""
    return Load(
        streams=STREAMS,
        tokens=round(seconds * TOKENS_PER_S),
        tokens_per_s=TOKENS_PER_S,
        events_per_s=TOKENS_PER_S / rates(speculative=speculative).accept_length,
    )


def one_engine(folder: Path, address: Address, pid: int, load: Load, *, speed: float) -> OneEngine:
    """The load on an engine that is on its way up, then on the floor."""
    wait_ready(address, folder / "log")
    before = decoded(address)
    streamed = run_load(address, pid, load)
    lag, by_model = lag_s(address), decoded(address).since(before)
    if by_model.requests != load.streams:
        raise RuntimeError(f"the engine counts {by_model.requests:g} streams, {load.streams} were sent")
    floor_address, log = ("127.0.0.1", free_port()), folder / "floor.log"
    with floor(floor_address[1], log, load) as popen:
        wait_open(floor_address, log)
        floored = run_load(floor_address, popen.pid, load)
    by_model_s = by_model.mean_s_per_token * (load.tokens - 1) / speed
    return OneEngine(load=load, by_model_s=by_model_s, lag_s=lag, streamed=streamed, floor=floored)


def measure_engines(folder: Path, seconds: float) -> tuple[OneEngine, OneEngine]:
    """Without a draft and with one. Both start at once, as a start only waits."""
    kinds = [(name, name == "draft", speed_for(speculative=name == "draft")) for name in ("plain", "draft")]
    found = []
    with ExitStack() as stack:
        started = [
            stack.enter_context(engine(folder / name, streams=STREAMS, speed=speed, speculative=speculative))
            for name, speculative, speed in kinds
        ]
        for (name, speculative, speed), (address, pid) in zip(kinds, started, strict=True):
            load = load_for(seconds, speculative=speculative)
            say(f"{STREAMS} streams, {load.events_per_s:.3g} events/s each, then the floor")
            found.append(one_engine(folder / name, address, pid, load, speed=speed))
    return found[0], found[1]


def engine_rows(found: OneEngine, name: str) -> list[Row]:
    """The figures of one engine."""
    load, streamed, floored = found.load, found.streamed, found.floor
    what = f"{load.streams} streams at {load.tokens_per_s:g} tokens/s, {name}"
    return [
        Row(
            figure=f"{what}: slowest stream behind the model's clock",
            value=found.behind_percent,
            unit="%",
            goal=MAX_BEHIND_PERCENT,
            peer="a server without a model",
            peer_value=found.floor_behind_percent,
        ),
        Row(
            figure=f"{what}: CPU of the engine",
            value=streamed.cpu * 100,
            unit="% of a core",
            peer="a server without a model",
            peer_value=floored.cpu * 100,
        ),
        Row(
            figure=f"{what}: resident memory, peak",
            value=streamed.peak_bytes / MIB,
            unit="MiB",
            goal=MAX_ENGINE_MIB,
            peer="a server without a model",
            peer_value=floored.peak_bytes / MIB,
        ),
        Row(
            figure=f"{what}: events received",
            value=streamed.events / streamed.wall_s,
            unit="1/s",
            peer="a server without a model",
            peer_value=floored.events / floored.wall_s,
        ),
        Row(figure=f"{what}: largest delay of a step in the last 10 s", value=found.lag_s * 1000, unit="ms"),
        Row(
            figure=f"{what}: CPU of strangers on this machine meanwhile",
            value=streamed.others_cpu * 100,
            unit="% of a core",
            peer="while the floor ran",
            peer_value=floored.others_cpu * 100,
        ),
    ]


# --- many replicas ---------------------------------------------------------------------------------------------------


def replica_rows(settings: replicas.Settings, found: replicas.Found, alone: Streamed) -> list[Row]:
    """The figures of a pool in a sandbox; `alone` is what one engine was by itself."""
    count, bare = settings.replicas, found.bare_bytes
    what = f"{count} replicas at {settings.speed:g} x life"
    busy = f"{what}, {settings.streams} streams on each"
    return [
        Row(
            figure=f"{busy}, control plane, agent, operator: memory (PSS)",
            value=max(found.busy_bytes, found.idle_bytes) / MIB,
            unit="MiB",
            goal=MAX_SANDBOX_MIB,
            peer="without the pool",
            peer_value=bare / MIB,
        ),
        Row(
            figure="one replica's share of that: engine, launcher, container",
            value=(max(found.busy_bytes, found.idle_bytes) - bare) / count / MIB,
            unit="MiB",
            peer="resident memory of one engine by itself",
            peer_value=alone.peak_bytes / MIB,
        ),
        Row(
            figure=f"{what}: pool created to Ready",
            value=found.ready_s,
            unit="s",
            peer="an engine's own start",
            peer_value=found.model_s,
        ),
        Row(
            figure=f"{what}: CPU of the sandbox, no requests",
            value=found.idle_cpu * 100,
            unit="% of a core",
            peer="without the pool",
            peer_value=found.bare_cpu * 100,
        ),
        Row(
            figure=f"{busy}: CPU of the sandbox, on two cores",
            value=found.busy_cpu * 100,
            unit="% of a core",
            peer="the client beside it",
            peer_value=found.client_cpu * 100,
        ),
        Row(
            figure=f"{busy}: tokens behind the model's clock, mean",
            value=found.behind * 100,
            unit="%",
            goal=MAX_BEHIND_PERCENT,
        ),
        Row(figure=f"{busy}: largest delay of a step in the last 10 s", value=found.lag_s * 1000, unit="ms"),
        Row(figure=f"{busy}: CPU of strangers meanwhile", value=found.others_cpu * 100, unit="% of a core"),
        Row(figure=f"{busy}: tokens generated", value=found.tokens_per_s, unit="1/s"),
        Row(figure=f"{busy}: events received", value=found.events_per_s, unit="1/s"),
        Row(figure=f"{busy}: not Ready or restarted at the end", value=found.disturbed, unit="replicas", goal=0),
    ]


# --- the run ---------------------------------------------------------------------------------------------------------


def measure(settings: Settings) -> list[Row]:
    """Measure everything, and leave nothing behind."""
    say("the radix cache")
    found = radix.rows(turns=settings.turns)
    with tempfile.TemporaryDirectory(prefix="sglpool-bench-") as folder:
        plain, draft = measure_engines(Path(folder), settings.seconds)
        say(f"a sandbox with {settings.pool.replicas} replicas")
        pool = replicas.measure(Path(folder) / "sandbox", settings.pool)
    return [
        *engine_rows(plain, "a token an event"),
        *engine_rows(draft, f"{plain.load.events_per_s / draft.load.events_per_s:g} tokens an event"),
        *replica_rows(settings.pool, pool, plain.streamed),
        *found,
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sandbox", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="little of everything: a smoke test, not a figure")
    parser.add_argument("--out", type=Path, help="file of results (default benchmarks/results/sandbox.json)")
    options = parser.parse_args(arguments)
    settings = QUICK if options.quick else FULL
    load_before = os.getloadavg()[0]
    found = measure(settings)
    show("sglpool sandbox: simulated engines on this machine", found)
    if options.out or not options.quick:
        values = {
            "streams": STREAMS,
            "tokensPerSecond": TOKENS_PER_S,
            "streamSeconds": settings.seconds,
            "replicas": settings.pool.replicas,
            "speed": settings.pool.speed,
            "streamsPerReplica": settings.pool.streams,
            "replicaSeconds": settings.pool.seconds,
            "loadAverageBefore": load_before,
        }
        write_results(options.out or RESULTS / "sandbox.json", benchmark="sandbox", settings=values, rows=found)


if __name__ == "__main__":
    main()
