"""The autoscaler over days of a fluid model: how long it lets a pool be overloaded, and what it spends on that.

24 hours with 64 to 240 concurrent requests, noise and six bursts; replicas that should carry 5 and take 600 s to
start. The decision is the operator's own. Beside it, on the same load, the formulas of Kubernetes' HPA and of
Knative's KPA, with the same utilisation target. The load is one that gives these formulas the figures that they are
known for. Then three hours of such a day request by request (`windows`), a scale-down (`drain`), how soon a step is
answered, and what a tick costs (`ticks`). Deterministic but for the CPU time. Run it with
`python -m benchmarks.autoscaler`.
"""

import argparse
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import RESULTS, Row, percentile, show, write_results
from benchmarks.drain import drain_rows
from benchmarks.step import step_rows
from benchmarks.ticks import tick_rows
from benchmarks.windows import window_rows

from sglpool.lab.fluid import STEP_S, Day, Fleet, Outcome, Scaler, simulate
from sglpool.lab.fluid_scalers import HorizontalPodAutoscaler, KnativePodAutoscaler, Ours, policy_of, signals_of
from sglpool.lab.workload import Kind
from sglpool.scaling import Memory, decide

TARGET, COLD_START_S, FAST_START_S, DRAIN_S = 5.0, 600.0, 120.0, 600.0
UTILIZATION, SLOW_STABILIZATION_S = 0.9, 900.0
ABOVE_GOAL, COST_GOAL, SCALE_UPS_GOAL, STEP_GOAL_S, CPU_GOAL_S = 1.5, 30.0, 50.0, 20.0, 1.0
BLACKOUTS_S, BLACKOUT_S = (5 * 3600.0, 14 * 3600.0, 19 * 3600.0), 1800.0
POOLS, POOL_REPLICAS = 1000, 20
STEADY_S = 2400.0

Make = Callable[[Fleet], Scaler]


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is simulated."""

    seeds: int = 6
    steps: int = 200
    live: int = 40
    windows: int = 3
    kinds: tuple[Kind, ...] = (Kind.INTERACTIVE, Kind.AUTONOMOUS)
    drains: int = 3
    drained: int = 50


@dataclass(frozen=True, slots=True)
class Variant:
    """What a day is run with.

    Attributes:
        cold_start_s: how long a start takes.
        drain_s: how long a replica drains before it is gone.
        blackouts: whether the load cannot be read for half an hour, three times.
    """

    cold_start_s: float = COLD_START_S
    drain_s: float = 0.0
    blackouts: bool = False


def ours(fleet: Fleet) -> Ours:
    """The operator's decision."""
    return Ours(policy=policy_of(fleet))


def hpa(_fleet: Fleet) -> Scaler:
    """The formula of Kubernetes' HPA."""
    return HorizontalPodAutoscaler(utilization=UTILIZATION)


def slow_hpa(_fleet: Fleet) -> Scaler:
    """The same with a stabilisation window as long as the operator's."""
    return HorizontalPodAutoscaler(utilization=UTILIZATION, stabilization_s=SLOW_STABILIZATION_S)


def blind_hpa(_fleet: Fleet) -> Scaler:
    """The same with a metric that is zero while it is missing, as `or vector(0)` makes it."""
    return HorizontalPodAutoscaler(utilization=UTILIZATION, blind=True)


def kpa(_fleet: Fleet) -> Scaler:
    """The formula of Knative's KPA."""
    return KnativePodAutoscaler(utilization=UTILIZATION)


PEERS: dict[str, Make] = {
    "HPA formula, 90%, 300 s": hpa,
    "HPA formula, 90%, 900 s": slow_hpa,
    "KPA formula, 90%, 60 s and 6 s": kpa,
}


def days(make: Make, settings: Settings, variant: Variant) -> list[Outcome]:
    """One day for each seed."""
    return [_day(make, seed, variant) for seed in range(1, settings.seeds + 1)]


def _day(make: Make, seed: int, variant: Variant) -> Outcome:
    load = Day(seed=seed).load()
    fleet = _fleet(load[0], seed, variant)
    return simulate(load, fleet, make(fleet), readable=_outside_blackouts if variant.blackouts else _always)


def _fleet(load: float, seed: int, variant: Variant) -> Fleet:
    rng = random.Random(seed)
    fleet = Fleet(target=TARGET, cold_start_s=variant.cold_start_s, drain_s=variant.drain_s, rng=rng)
    fleet.fill(math.ceil(load / UTILIZATION / TARGET))
    return fleet


def _always(_now_s: float) -> bool:
    return True


def _outside_blackouts(now_s: float) -> bool:
    return not any(begin_s <= now_s < begin_s + BLACKOUT_S for begin_s in BLACKOUTS_S)


def measure(settings: Settings) -> list[Row]:
    """Run everything; first what needs processes, which is what may not work here."""
    live = [*step_rows(settings.live), *tick_rows()]
    return [
        *_day_rows(settings),
        *_variant_rows(settings),
        *_blackout_rows(settings),
        *window_rows(settings.windows, settings.kinds, lambda load: _fleet(load, 1, Variant(drain_s=DRAIN_S)), ours),
        *drain_rows(settings.drains, replicas=settings.drained),
        *_step_rows(settings),
        _cpu_row(),
        *live,
    ]


def _day_rows(settings: Settings) -> list[Row]:
    own = days(ours, settings, Variant())
    peers = [(name, days(make, settings, Variant())) for name, make in PEERS.items()]
    figures: tuple[tuple[str, str, float | None, Callable[[Outcome], float]], ...] = (
        ("time with more than 1.2 of the target", "%", ABOVE_GOAL, lambda day: day.above * 100),
        ("time with more than 1.5 of the target", "%", None, lambda day: day.far_above * 100),
        ("replica-hours over those of a perfect autoscaler", "%", COST_GOAL, lambda day: day.over_ideal * 100),
        ("scale-ups a day", "1", SCALE_UPS_GOAL, lambda day: day.scale_ups),
        ("warm replicas let go a day", "1", None, lambda day: day.removed),
    )
    rows = []
    for figure, unit, goal, of in figures:
        for number, (name, others) in enumerate(peers):
            rows.append(
                Row(
                    figure=figure if number == 0 else "the same",
                    value=_mean(own, of),
                    unit=unit,
                    goal=goal if number == 0 else None,
                    peer=name,
                    peer_value=_mean(others, of),
                )
            )
    return rows


def _variant_rows(settings: Settings) -> list[Row]:
    """What drains and faster starts change."""
    rows = []
    for name, variant in (
        (f"replicas that drain for {DRAIN_S:.0f} s", Variant(drain_s=DRAIN_S)),
        (f"a cold start of {FAST_START_S:.0f} s", Variant(cold_start_s=FAST_START_S)),
    ):
        own, other = days(ours, settings, variant), days(hpa, settings, variant)
        for figure, of in (("time above 1.2", _above), ("replica-hours over perfect", _cost)):
            rows.append(
                Row(
                    figure=f"{name}: {figure}",
                    value=_mean(own, of),
                    unit="%",
                    peer="HPA formula",
                    peer_value=_mean(other, of),
                )
            )
    return rows


def _above(day: Outcome) -> float:
    return day.above * 100


def _cost(day: Outcome) -> float:
    return day.over_ideal * 100


def _blackout_rows(settings: Settings) -> list[Row]:
    variant = Variant(blackouts=True)
    own, other = days(ours, settings, variant), days(blind_hpa, settings, variant)
    peer = "HPA formula, missing read as zero"
    return [
        Row(
            figure="three blackouts of 30 minutes a day: scale-downs in them",
            value=sum(day.blind_scale_downs for day in own),
            unit="1",
            goal=0,
            peer=peer,
            peer_value=sum(day.blind_scale_downs for day in other),
        ),
        Row(
            figure="the same: time with more than 1.2 of the target",
            value=_mean(own, _above),
            unit="%",
            peer=peer,
            peer_value=_mean(other, _above),
        ),
    ]


def _step_rows(settings: Settings) -> list[Row]:
    """How long after the load has doubled the decision to grow comes."""
    own, other, third = (_reactions_s(make, settings) for make in (ours, hpa, kpa))
    figure = "load that doubles: until it is decided to grow, p95"
    return [
        Row(
            figure=figure,
            value=percentile(own, 95),
            unit="s",
            goal=STEP_GOAL_S,
            peer="HPA formula on the same reading",
            peer_value=percentile(other, 95),
        ),
        Row(
            figure="the same",
            value=percentile(own, 95),
            unit="s",
            peer="KPA formula, every 5 s",
            peer_value=percentile(third, 95),
        ),
    ]


def _reactions_s(make: Make, settings: Settings) -> list[float]:
    return [_reaction_s(make, seed) for seed in range(settings.steps)]


def _reaction_s(make: Make, seed: int) -> float:
    """Seconds from a step, at any moment between two ticks, to the first decision to grow."""
    rng = random.Random(seed)
    steady = rng.uniform(Day().low, Day().high / 2)
    # The model sees the step at its own next step; it happened some time before that.
    at, earlier_s = int(STEADY_S / STEP_S) + rng.randrange(60), rng.uniform(0, STEP_S)
    noise = Day(low=steady, high=steady, bursts=0, seed=seed).load()[: at + 120]
    load = [value * (2 if step >= at else 1) for step, value in enumerate(noise)]
    fleet = _fleet(steady, seed, Variant())
    sizes = simulate(load, fleet, make(fleet)).sizes
    grown = next((step for step in range(at, len(sizes)) if sizes[step] > sizes[step - 1]), len(sizes))
    return (grown - at) * STEP_S + earlier_s


def _cpu_row() -> Row:
    """CPU of the decisions of one tick over many pools, each with a history."""
    fleet = _fleet(POOL_REPLICAS * TARGET * UTILIZATION, 1, Variant())
    policy, memory, loads = policy_of(fleet), Memory(), Day(seed=1).load()
    for tick in range(120):
        _, memory = decide(policy, signals_of(fleet, loads[tick] + 20, POOL_REPLICAS, tick * 15.0), memory, tick * 15.0)
    now_s = 120 * 15.0
    every = [signals_of(fleet, load, POOL_REPLICAS, now_s) for load in loads[:POOLS]]
    started_s = time.process_time()
    for signals in every:
        decide(policy, signals, memory, now_s)
    took_s = time.process_time() - started_s
    return Row(
        figure=f"CPU of {POOLS:,} decisions, {len(fleet.pods)} replicas a pool", value=took_s, unit="s", goal=CPU_GOAL_S
    )


def _mean(outcomes: Sequence[Outcome], of: Callable[[Outcome], float]) -> float:
    return sum(of(each) for each in outcomes) / len(outcomes)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, simulate, print and write; 1 if a goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.autoscaler", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one day and ten steps: a smoke test, not a figure")
    parser.add_argument("--out", type=Path, help="file of results (default benchmarks/results/autoscaler.json)")
    options = parser.parse_args(arguments)
    settings = (
        Settings(seeds=1, steps=10, live=4, windows=1, kinds=(Kind.AUTONOMOUS,), drains=1, drained=10)
        if options.quick
        else Settings()
    )
    started_s = time.process_time()
    found = measure(settings)
    print(f"{time.process_time() - started_s:.0f} s of CPU", file=sys.stderr)
    show("the autoscaler over days of a fluid model", found)
    if options.out or not options.quick:
        values = {"seeds": settings.seeds, "steps": settings.steps, "coldStartSeconds": COLD_START_S, "target": TARGET}
        write_results(options.out or RESULTS / "autoscaler.json", benchmark="autoscaler", settings=values, rows=found)
    return int(any(row.met is False for row in found))


if __name__ == "__main__":
    sys.exit(main())
