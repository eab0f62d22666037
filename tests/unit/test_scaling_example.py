"""The example in the documentation of the autoscaler is what the decision really does, figure by figure."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from sglpool.scaling import Decision, Reason, TypePolicy
from sglpool.scaling.capacity import FAILED_AFTER_COLD_STARTS, HOMELESS_AFTER_S
from sglpool.scaling.decide import GROW_ABOVE, SHRINK_BELOW
from sglpool.scaling.demand import FRESH_SHARE, HEAD_ROOM, WINDOW_COLD_STARTS, WINDOW_S
from sglpool.scaling.moves import N_MINUS_1, SHRINK_SHARE, STEP_MIN, STEP_SHARE
from sglpool.scaling.types import DEFAULT_COLD_START_S, MAX_AGE_S
from support.scaling import Pool, policy

DOCUMENT = Path(__file__).parents[2] / "docs" / "autoscaling.md"
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "autoscaler.json"
FIGURES = ("time with more than 1.2 of the target", "replica-hours over those of a perfect autoscaler")
B200 = TypePolicy(type="B200", target_running_requests=5, max_replicas=12)
B300 = TypePolicy(type="B300", target_running_requests=10)


@pytest.fixture
def text() -> str:
    """The example, on one line."""
    whole = DOCUMENT.read_text(encoding="utf-8")
    return " ".join(whole.partition("## An example")[2].partition("\n## ")[0].split())


def places(decision: Decision) -> float:
    """Places that all wanted replicas have."""
    return decision.wanted["B200"] * 5 + decision.wanted["B300"] * 10


def sizes(decision: Decision) -> tuple[int, int]:
    """Wanted replicas of both types."""
    return decision.wanted["B200"], decision.wanted["B300"]


def test_the_example_of_the_documentation(text: str) -> None:
    pool = Pool(policy(B200, B300, least=4, most=24), load=41.0).fill(B200=10)
    steady = pool.run(1200.0)
    assert (sizes(steady), steady.reason) == ((10, 0), Reason.WITHIN_TARGET)
    assert f"need {steady.inputs['needRequests']:.1f} places" in text

    pool.load, pool.room = 60.0, {"B200": 10}
    grown = pool.run(75.0)
    assert sizes(grown) == (12, 1)
    need = 60.0 / 0.9
    assert f"need {need:.1f}, above 52.5" in text
    assert f"Together they have {places(grown):.0f}" in text

    spilled = pool.run(360.0)
    assert (sizes(spilled), Reason.SPILLED in {one.reason for one in pool.decisions}) == ((12, 2), True)
    assert f"falls from 70 to {spilled.inputs['capacityRequests'] - 10:.0f}" in text

    pool.run(600.0)
    pool.room = {}
    back = pool.run(1200.0)
    assert sizes(back) == (12, 1)
    assert Reason.RETURNING in {one.reason for one in pool.decisions}

    pool.load = 24.0
    begun = len(pool.decisions)
    night = pool.run(3600.0)
    evening = pool.decisions[begun:]
    first = next(index for index, one in enumerate(evening) if one.total < back.total)
    low = 24.0 / 0.9
    assert f"{low:.1f} places" in text
    assert 900.0 <= first * 15.0 <= 1020.0
    assert sizes(evening[first]) == (12, 0)
    assert sizes(night) == (6, 0)
    assert f"{low / 0.95:.1f}" in text
    steps = sum(one.total != other.total for one, other in pairwise(evening))
    assert f"{steps} steps" in text


def test_the_message_that_the_documentation_shows() -> None:
    decision = Pool(policy(B200, B300, least=4, most=24), load=60.0).fill(B200=10).tick()
    assert decision.message in DOCUMENT.read_text(encoding="utf-8")


def test_the_documentation_has_every_reason_and_the_constants_of_the_rules() -> None:
    whole = " ".join(DOCUMENT.read_text(encoding="utf-8").split())
    assert [reason for reason in Reason if f"`{reason}`" not in whole] == []
    for sentence in (
        f"above {GROW_ABOVE} of the places",
        f"below {SHRINK_BELOW} of the places",
        f"at most {STEP_MIN} replicas, or half of the pool, in half a cold start",
        f"{WINDOW_S / 60:.0f} minutes, or {WINDOW_COLD_STARTS} cold starts",
        f"at most {N_MINUS_1:.0%} of its places",
        f"older than {MAX_AGE_S:.0f} s, less than {FRESH_SHARE:.0%}",
        f"divided by {HEAD_ROOM}",
        f"{DEFAULT_COLD_START_S / 60:.0f} minutes before any was",
    ):
        assert sentence in whole
    assert (STEP_SHARE, SHRINK_SHARE, HOMELESS_AFTER_S, FAILED_AFTER_COLD_STARTS) == (0.5, 0.1, 300.0, 2.0)


def test_the_figures_that_the_documentation_gives_are_those_of_the_benchmark() -> None:
    whole = " ".join(DOCUMENT.read_text(encoding="utf-8").split())
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]
    found = {row["figure"]: row["value"] for row in rows if row["figure"] != "the same"}
    above, cost = (found[name] for name in FIGURES)
    assert f"for {above:.1f}% of the time, for {cost:.0f}% more" in whole
    assert f"falls to {found['a cold start of 120 s: time above 1.2']:.1f}%" in whole


def test_the_hours_by_request_and_the_scale_down_of_the_documentation_are_those_of_the_benchmark() -> None:
    whole = " ".join(DOCUMENT.read_text(encoding="utf-8").split())
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]
    at = {row["figure"]: number for number, row in enumerate(rows) if row["figure"] != "the same"}
    morning, evening = (
        next(at[name] for name in at if name.startswith(begins) and "interactive: time" in name)
        for begins in ("morning", "evening")
    )
    assert f"burst {rows[morning]['value']:.1f}% of the time is above 1.2" in whole
    assert f"the model says {rows[morning + 1]['peer_value']:.1f}%" in whole
    assert f"took {rows[evening]['value']:.1f}% of its hour above 1.2" in whole
    assert f"on its own load has {rows[evening]['peer_value']:.1f}%" in whole
    agents = [rows[at[name]] for name in at if "autonomous: time" in name]
    for row, hour in ((agents[0], "morning"), (agents[-1], "evening")):
        assert f"{row['value']:.1f}% for {row['peer_value']:.1f}% in the {hour}" in whole
    first = next(at[name] for name in at if name.startswith("50 to 40 replicas"))
    forced, paused, ttft, _, lost, gone = (row["value"] for row in rows[first : first + 6])
    assert f"shrink: {forced:.1f}% of them are at work" in whole
    assert f"Another {paused:.1f}% pause then" in whole
    assert f"TTFT p99 is {ttft:.2f} of what it is on 50 replicas" in whole
    assert lost == 0
    assert f"after {gone / 60:.1f} minutes all have gone" in whole
