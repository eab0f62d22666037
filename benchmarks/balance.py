"""The routing policy in the laboratory: how even load is, what that costs in cache hits, and what changes do to it.

Every scenario has 50 simulated replicas with about five requests each; the policy knows what a real router knows
(lengths of bodies, usage of ended responses, snapshots of engines). Peers are other policies on the same clients in the
same run. Deterministic but for the figure of CPU time. Run it with `python -m benchmarks.balance`.
Not here: a pool that shrinks (`drain`, with the autoscaler's figures).
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.common import RESULTS, Row, show, write_results

from sglpool.lab.figures import Figures, seconds_to_share, vmr_between
from sglpool.lab.scenario import Resize, Scenario
from sglpool.lab.simulator import Simulator
from sglpool.lab.workload import Kind

VMR_GOALS = {Kind.AUTONOMOUS: 0.35, Kind.THICK: 0.40, Kind.INTERACTIVE: 0.50}
HIT_GOAL_POINTS = 0.5
TTFT_GOAL = 0.6
ROUTERS_GOAL = 1.2
POLL_S, HEARTBEAT_S = 5.0, 1.0
SHARE_OF_MEAN, WINDOW_S = 0.8, 15
GROWTH_MORE_S = 100.0


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is simulated.

    Attributes:
        replicas: of the pool.
        measured_s: of every simulation.
        settle_s: until policies are compared. Under a hash, slow replicas keep their sessions for longer and so collect
            more of them; that takes the lives of some sessions, and what is measured before flatters it.
        warmup_s: before changes, to which only our own policy is put: it is settled once caches are filled.
        seed: of everything random.
    """

    replicas: int = 50
    measured_s: float = 600.0
    settle_s: float = 2000.0
    warmup_s: float = 400.0
    seed: int = 1

    def compared(self, kind: Kind) -> Scenario:
        """The scenario in which policies are compared."""
        return self._scenario(kind, self.settle_s)

    def changed(self, kind: Kind, *, more_s: float = 0.0) -> Scenario:
        """The scenario to which something happens; it may go on for longer."""
        scenario = self._scenario(kind, self.warmup_s)
        return replace(scenario, seconds=scenario.seconds + more_s)

    def _scenario(self, kind: Kind, warmup_s: float) -> Scenario:
        return Scenario(
            kind=kind,
            replicas=self.replicas,
            seconds=warmup_s + self.measured_s,
            warmup_s=warmup_s,
            seed=self.seed,
        )


class _Runs:
    """Runs simulations and counts what they cost."""

    def __init__(self) -> None:
        self.simulated_s = 0.0
        self.cpu_s = 0.0

    def run(self, scenario: Scenario) -> tuple[Simulator, Figures]:
        """One simulation and its figures."""
        started_s = time.process_time()
        simulator = Simulator(scenario)
        found = simulator.run()
        took_s = time.process_time() - started_s
        self.cpu_s += took_s
        self.simulated_s += scenario.seconds
        what = f"{scenario.kind}, {scenario.policy}, {scenario.routers} routers"
        lost = (found.hit_bound - found.hit_rate) * 100
        result = f"VMR {found.vmr:.2f}, hits {lost:.2f} points short, TTFT p99 {found.ttft_p99_s:.1f} s, {found.rules}"
        print(f"{what}: {took_s:.0f} s of CPU, {result}", file=sys.stderr, flush=True)
        return simulator, found

    def figures(self, scenario: Scenario) -> Figures:
        """The figures of one simulation."""
        return self.run(scenario)[1]


def measure(settings: Settings, trace: str) -> list[Row]:
    """Run all scenarios."""
    runs = _Runs()
    found: list[Row] = []
    for kind in Kind:
        found += _kind_rows(runs, settings.compared(kind), str(kind))
    if trace:
        for kind in (Kind.AUTONOMOUS, Kind.INTERACTIVE):
            found += _kind_rows(runs, replace(settings.compared(kind), trace=trace), f"recorded, {kind}")
    found += _router_rows(runs, settings) + _growth_rows(runs, settings)
    return [*found, Row(figure="CPU time of a simulated hour", value=runs.cpu_s / runs.simulated_s * 3600, unit="s")]


def _kind_rows(runs: _Runs, scenario: Scenario, name: str) -> list[Row]:
    """The figures of one kind of clients, next to what others do with the same ones."""
    ours = runs.figures(scenario)
    hashed = runs.figures(replace(scenario, policy="session_hash"))
    bounded = runs.figures(replace(scenario, policy="bounded_hash"))
    return [
        Row(
            figure=f"{name}: variance over mean of running requests",
            value=ours.vmr,
            unit="1",
            goal=VMR_GOALS[scenario.kind],
            peer="session hash",
            peer_value=hashed.vmr,
        ),
        Row(
            figure=f"{name}: cache hits below perfect affinity",
            value=(ours.hit_bound - ours.hit_rate) * 100,
            unit="points",
            goal=HIT_GOAL_POINTS,
            peer="bounded-load hash",
            peer_value=(bounded.hit_bound - bounded.hit_rate) * 100,
        ),
        Row(
            figure=f"{name}: TTFT p99 ({ours.ttft_p99_s:.1f} s) to that of the session hash",
            value=ours.ttft_p99_s / hashed.ttft_p99_s,
            unit="x",
            goal=TTFT_GOAL,
            peer="bounded-load hash",
            peer_value=bounded.ttft_p99_s / hashed.ttft_p99_s,
        ),
        _context(f"{name}: requests a second", ours.requests_per_s, "1/s", "session hash", hashed.requests_per_s),
        _context(
            f"{name}: TTFT p99 where most is cached",
            ours.warm_ttft_p99_s,
            "s",
            "session hash",
            hashed.warm_ttft_p99_s,
        ),
        _context(f"{name}: TTFT p99 of prompts alone and with all their cache, a floor", ours.alone_p99_s, "s"),
        _context(f"{name}: TTFT p50", ours.ttft_p50_s, "s", "session hash", hashed.ttft_p50_s),
        _context(f"{name}: mean load of a replica", ours.mean_load, "1", "session hash", hashed.mean_load),
        _share(f"{name}: replicas with 12 or more", ours.heavy_share, "session hash", hashed.heavy_share),
        _share(f"{name}: replicas with 1 or none", ours.light_share, "session hash", hashed.light_share),
        _share(f"{name}: warm moves", ours.warm_moved_share, "bounded-load hash", bounded.warm_moved_share),
    ]


def _router_rows(runs: _Runs, settings: Settings) -> list[Row]:
    """Many routers that know of each other late, and routers that lose their store."""
    one = runs.figures(settings.changed(Kind.AUTONOMOUS))
    scenario = replace(settings.changed(Kind.AUTONOMOUS), routers=8, poll_s=POLL_S, heartbeat_s=HEARTBEAT_S)
    eight = runs.figures(scenario)
    late = runs.figures(replace(scenario, heartbeat_s=POLL_S))
    away_s = settings.warmup_s + settings.measured_s / 3, settings.warmup_s + settings.measured_s * 2 / 3
    outage = runs.figures(replace(scenario, outage=away_s))
    return [
        Row(
            figure="autonomous: VMR with 8 routers and polls up to 5 s old, to that with one router",
            value=eight.vmr / one.vmr,
            unit="x",
            goal=ROUTERS_GOAL,
        ),
        _context("the same, heartbeats between routers up to 5 s old as well", late.vmr / one.vmr, "x"),
        _context("8 routers: cache hits below perfect affinity", (eight.hit_bound - eight.hit_rate) * 100, "points"),
        _context(
            f"8 routers, store away for {away_s[1] - away_s[0]:.0f} s: cache hits below perfect affinity",
            (outage.hit_bound - outage.hit_rate) * 100,
            "points",
        ),
        _context("the same: variance over mean of running requests", outage.vmr, "1"),
    ]


def _growth_rows(runs: _Runs, settings: Settings) -> list[Row]:
    """40 replicas become 50."""
    scenario = replace(settings.changed(Kind.AUTONOMOUS, more_s=GROWTH_MORE_S), replicas=settings.replicas * 4 // 5)
    at_s = settings.warmup_s + 60
    scenario = replace(
        scenario,
        sessions=settings.changed(Kind.AUTONOMOUS).clients,
        resize=Resize(at_s=at_s, replicas=settings.replicas),
    )
    ours, found = runs.run(scenario)
    hashed, peer = runs.run(replace(scenario, policy="session_hash"))
    new = {f"r{number}" for number in range(scenario.replicas, settings.replicas)}
    samples = ours.tally.samples
    what = f"{scenario.replicas} to {settings.replicas} replicas"
    return [
        Row(
            figure=f"{what}: warm conversations moved by force",
            value=found.forced_warm_moves,
            unit="1",
            goal=0,
            peer="session hash",
            peer_value=round(peer.warm_moved_share * peer.requests),
        ),
        _context(
            f"{what}: until the new ones have 80% of the mean load",
            seconds_to_share(samples, new, at_s, SHARE_OF_MEAN, WINDOW_S),
            "s",
            "session hash",
            seconds_to_share(hashed.tally.samples, new, at_s, SHARE_OF_MEAN, WINDOW_S),
        ),
        _context(
            f"{what}: variance over mean 300 s later",
            vmr_between(samples, at_s + 300, scenario.seconds),
            "1",
            "session hash",
            vmr_between(hashed.tally.samples, at_s + 300, scenario.seconds),
        ),
    ]


def _context(figure: str, value: float, unit: str, peer: str = "", peer_value: float | None = None) -> Row:
    return Row(figure=figure, value=value, unit=unit, peer=peer, peer_value=peer_value)


def _share(figure: str, value: float, peer: str, peer_value: float) -> Row:
    return _context(figure, value * 100, "%", peer, peer_value * 100)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, simulate, print and write; 1 if a goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.balance", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trace", default="", help="corpus of recorded sessions to replay as well")
    parser.add_argument("--quick", action="store_true", help="10 replicas and 200 s: a smoke test, not a figure")
    parser.add_argument("--out", type=Path, help="file of results (default benchmarks/results/balance.json)")
    options = parser.parse_args(arguments)
    settings = Settings(seed=options.seed)
    if options.quick:
        settings = Settings(replicas=10, measured_s=200.0, settle_s=150.0, warmup_s=150.0, seed=options.seed)
    found = measure(settings, options.trace)
    show("balance of the routing policy, simulated", found)
    if options.out or not options.quick:
        values = {
            "replicas": settings.replicas,
            "measuredSeconds": settings.measured_s,
            "settleSeconds": settings.settle_s,
            "seed": settings.seed,
        }
        write_results(options.out or RESULTS / "balance.json", benchmark="balance", settings=values, rows=found)
    return int(any(row.met is False for row in found))


if __name__ == "__main__":
    sys.exit(main())
