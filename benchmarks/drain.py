"""A scale-down from 50 to 40 replicas under interactive conversations: what it costs those who lived on what went.

The policy is the product's own, on simulated engines; what goes drains for nine minutes, the highest ordinals first.
There are as many clients as let the autoscaler want no more than 40: so many replicas carry 90% of their target. Beside
it the same clients on 50 replicas that stay, and on 40 that always were as few.

Who lives on a replica that drains leaves when there is nothing to keep (the conversation ends or is compacted, or
another replica still has it), and otherwise stays until the time is over. Two figures count who is left then. *Forced*
is a conversation at work, seen within the last 60 seconds, which is what the product calls not idle: its prompt is
computed anew in the middle of its work. The others pause. Whose user comes back within the next ten minutes, the
longest pause here, finds a cold cache then: that is the second figure. Leaving at an earlier pause would make both
smaller and the number of prompts computed anew larger, since many conversations end, or are compacted, before they
would have to go.
Not here: when a pool shrinks (`autoscaler`), and the rules (`routing`).
"""

from dataclasses import dataclass, replace

from benchmarks.common import Row

from sglpool.lab.figures import Figures, ttft_p99_between
from sglpool.lab.scenario import SESSIONS_PER_REPLICA, Resize, Scenario
from sglpool.lab.simulator import GRACE_S, Simulator
from sglpool.lab.workload import LONGEST_USER_GAP_S, Kind
from sglpool.scaling.demand import HEAD_ROOM

FORCED_GOAL_PERCENT, TTFT_GOAL, GONE_GOAL_S = 3.0, 1.1, 660.0
WARMUP_S = 460.0
DRAIN_S = GONE_GOAL_S - GRACE_S
"""What runs when the time is over may take as long as the grace after it: so much of the goal is left for the drain."""
TAIL_S = 120.0
"""Who has asked is waited for, or else the slowest would be missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """A scale-down, and the same clients without one."""

    clients: int
    figures: Figures
    ttft_p99_s: float
    steady_p99_s: float
    fewer_p99_s: float
    later_p99_s: float
    gone_s: float
    cut: int

    @property
    def paused(self) -> int:
        """Conversations that lost their cache during a pause."""
        return self.figures.forced_warm_moves - self.figures.forced_at_work


def drain_rows(seeds: int, *, replicas: int = 50) -> list[Row]:
    """The figures of scale-downs by a fifth, means over so many seeds, the longest of all for times."""
    fewer = replicas * 4 // 5
    pairs = [_pair(replicas, fewer, seed) for seed in range(1, seeds + 1)]
    what = f"{replicas} to {fewer} replicas, interactive, {DRAIN_S:.0f} s to drain"
    return [
        Row(
            figure=f"{what}: conversations forced, at work when the time was over",
            value=_mean([pair.figures.forced_at_work / pair.clients * 100 for pair in pairs]),
            unit="%",
            goal=FORCED_GOAL_PERCENT,
        ),
        Row(
            figure="the same: conversations that paused then, and came back to a cold cache",
            value=_mean([pair.paused / pair.clients * 100 for pair in pairs]),
            unit="%",
        ),
        Row(
            figure=f"the same: TTFT p99 while it drains ({_mean([pair.ttft_p99_s for pair in pairs]):.1f} s) "
            f"to that of {replicas} that stay",
            value=_mean([pair.ttft_p99_s / pair.steady_p99_s for pair in pairs]),
            unit="x",
            goal=TTFT_GOAL,
        ),
        Row(
            figure="the same: TTFT p99 in the ten minutes after it",
            value=_mean([pair.later_p99_s for pair in pairs]),
            unit="s",
            peer=f"{fewer} that always were as few, while it drains",
            peer_value=_mean([pair.fewer_p99_s for pair in pairs]),
        ),
        Row(
            figure="the same: requests refused or cut",
            value=sum(pair.figures.refused + pair.cut for pair in pairs),
            unit="1",
            goal=0,
        ),
        Row(
            figure="the same: until all have gone, the longest",
            value=max(pair.gone_s for pair in pairs),
            unit="s",
            goal=GONE_GOAL_S,
        ),
    ]


def _pair(replicas: int, fewer: int, seed: int) -> _Pair:
    until_s = WARMUP_S + GONE_GOAL_S
    calm = Scenario(
        kind=Kind.INTERACTIVE,
        replicas=fewer,
        sessions=round(fewer * SESSIONS_PER_REPLICA[Kind.INTERACTIVE] * HEAD_ROOM),
        seconds=until_s + TAIL_S,
        warmup_s=WARMUP_S,
        seed=seed,
    )
    before = replace(calm, replicas=replicas)
    shrinks = Resize(at_s=WARMUP_S, replicas=fewer, drain_s=DRAIN_S)
    run = Simulator(replace(before, seconds=WARMUP_S + DRAIN_S + LONGEST_USER_GAP_S, resize=shrinks))
    figures = run.run()
    return _Pair(
        clients=calm.clients,
        figures=figures,
        ttft_p99_s=ttft_p99_between(run.tally, WARMUP_S, until_s),
        steady_p99_s=_p99_s(before, until_s),
        fewer_p99_s=_p99_s(calm, until_s),
        later_p99_s=ttft_p99_between(run.tally, until_s, run.scenario.seconds),
        gone_s=max(run.removed_s.values()) - WARMUP_S,
        cut=run.tally.cut,
    )


def _p99_s(scenario: Scenario, until_s: float) -> float:
    run = Simulator(scenario)
    run.run()
    return ttft_p99_between(run.tally, WARMUP_S, until_s)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
