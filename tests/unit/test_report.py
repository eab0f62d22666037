"""The report of the demo: figures that are right, and a page that stands alone."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from sglpool.sandbox import report_svg as svg
from sglpool.sandbox.report import render
from sglpool.sandbox.report_charts import pods, stretches
from sglpool.sandbox.report_data import Chapter, Event, GpuType, Recording, Replica, Request, Sample, State
from sglpool.sandbox.report_figures import Failure, decisions, failures, hit_rate, percentile, totals, windows


def replica(pod: str = "p-b200-0", state: State = State.SERVING, **more: object) -> Replica:
    gpu = pod.split("-")[-2].upper()
    return Replica(pod=pod, gpu=gpu, node="n", state=state, **more)  # type: ignore[arg-type]


def sample(at_s: float, *, wanted: int = 1, ready: int = 1, **more: object) -> Sample:
    kinds = (GpuType(type="B200", wanted=wanted, ready=ready, target=4),)
    return Sample(at_s=at_s, types=kinds, **more)  # type: ignore[arg-type]


def recording(**more: object) -> Recording:
    plain = {"pool": "coder", "model": "kimi", "speed": 40.0, "began": "today", "version": "1"}
    return Recording(**(plain | more))  # type: ignore[arg-type]


class Page(HTMLParser):
    """What a browser would fetch, and whether tags close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "br", "img"):
            self.open.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)


def test_percentiles_are_values_that_occurred() -> None:
    assert percentile([], 0.5) is None
    assert percentile([3.0], 0.99) == 3.0
    assert percentile([float(n) for n in range(1, 101)], 0.99) == 99.0
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.0


def test_hit_rate_counts_tokens_and_not_requests() -> None:
    requests = [
        Request(at_s=0, prompt_tokens=900, cached_tokens=900),
        Request(at_s=0, prompt_tokens=100, cached_tokens=0),
        Request(at_s=0, prompt_tokens=5000, problem="503"),
    ]
    assert hit_rate(requests) == 0.9
    assert hit_rate(requests[2:]) is None


def test_windows_go_by_when_a_request_was_sent() -> None:
    early = [Request(at_s=1.0, first_token_s=0.1 * n, prompt_tokens=1) for n in range(1, 11)]
    late = [Request(at_s=12.0, problem="gone"), Request(at_s=12.5, first_token_s=0.3, prompt_tokens=1)]
    first, second = windows([*late, *early], 5.0)
    assert (first.at_s, first.requests, first.failed, first.p50_s, first.p99_s) == (2.5, 10, 0, 0.5, 1.0)
    assert (second.at_s, second.requests, second.failed, second.p50_s) == (12.5, 1, 1, 0.3)
    assert second.p99_s is None, "one request has no p99"


def test_decisions_are_changes_with_the_reason_of_their_moment() -> None:
    samples = [
        Sample(at_s=0),
        sample(1, wanted=2, decided=2, why="Start", because="It begins."),
        sample(2, wanted=2, decided=2, why="Hold", because="Nothing to do."),
        sample(3, wanted=2, decided=4, why="Up", because="12 in flight."),
    ]
    assert [(item.at_s, item.before, item.after, item.why) for item in decisions(samples)] == [
        (1, 0, 2, "Start"),
        (3, 2, 4, "Up"),
    ]
    assert [item.why for item in decisions([sample(1, wanted=2)])] == ["Fixed"]


def test_failures_are_counted_by_what_went_wrong() -> None:
    requests = [Request(at_s=at_s, problem=why) for at_s, why in ((5, "b"), (1, ""), (9, "b"), (3, "a"))]
    assert failures(requests) == [
        Failure(problem="b", count=2, first_s=5, last_s=9),
        Failure(problem="a", count=1, first_s=3, last_s=3),
    ]


def test_the_page_says_nothing_about_failures_where_there_are_none() -> None:
    assert "Failed requests" not in render(full())
    assert "Failed requests" in render(recording(requests=(Request(at_s=1, problem="status 503"),)))


def test_events_are_about_the_pool_or_name_what_they_are_about() -> None:
    events = (
        Event(at_s=1, about="InferencePool coder", reason="A", message=""),
        Event(at_s=2, about="Pod coder-b200-0", reason="B", message=""),
        Event(at_s=3, about="Node b200-0", reason="C", message=""),
    )
    words = " ".join(Page(render(recording(events=events))).words)
    assert "0:01 the pool A" in words
    assert "0:02 pod b200-0 B" in words
    assert "0:03 node b200-0 C" in words


@pytest.mark.parametrize(
    ("ready", "bounds"),
    [
        # A pool of two that comes up one by one was never a pool of one.
        ((0, 1, 2, 4, 2), (2, 4)),
        ((0, 2, 4, 1), (1, 4)),
        ((0, 1), (0, 1)),
        ((), (0, 0)),
    ],
)
def test_totals_count_replicas_from_the_time_on_when_all_were_ready(
    ready: tuple[int, ...], bounds: tuple[int, int]
) -> None:
    counted = totals(recording(samples=tuple(sample(n, wanted=2, ready=count) for n, count in enumerate(ready))))
    assert (counted.fewest, counted.most) == bounds


def test_the_page_says_how_fast_engines_started() -> None:
    assert "the start of a replica 100 times" in render(recording(start_speed=100.0))
    assert "the start of a replica 40 times" in render(recording())


def test_one_failed_request_is_one() -> None:
    words = " ".join(Page(render(recording(requests=(Request(at_s=1, problem="status 503"),)))).words)
    assert "1 request failed" in words


def test_lanes_follow_a_replica_through_states_and_nodes() -> None:
    seen = [
        (0.0, None),
        (1.0, replica(state=State.STARTING)),
        (2.0, replica(state=State.STARTING)),
        (3.0, replica()),
        (4.0, None),
        (5.0, replica()),
        (6.0, replica()),
    ]
    assert [(begin_s, end_s, each.state) for begin_s, end_s, each in stretches(seen)] == [
        (1.0, 3.0, State.STARTING),
        (3.0, 4.0, State.SERVING),
        (5.0, 6.0, State.SERVING),
    ]


def test_lanes_are_in_order_of_preference_and_ordinals_count_as_numbers() -> None:
    kinds = (GpuType(type="B200", wanted=0, ready=0), GpuType(type="B300", wanted=0, ready=0))
    names = ("p-b300-0", "p-b200-10", "p-b200-2")
    assert pods([Sample(at_s=0, types=kinds, replicas=tuple(replica(name) for name in names))]) == [
        "p-b200-2",
        "p-b200-10",
        "p-b300-0",
    ]


@pytest.mark.parametrize(
    ("most", "ticks"),
    [(16, [0, 5, 10, 15, 20]), (1, [0, 0.25, 0.5, 0.75, 1]), (0, [0, 0.25, 0.5, 0.75, 1]), (100, [0, 25, 50, 75, 100])],
)
def test_scales_end_at_a_round_value_above_the_data(most: float, ticks: list[float]) -> None:
    assert svg.round_ticks(most) == pytest.approx(ticks)


def test_marks_keep_apart_and_within_the_chart() -> None:
    assert svg.apart([], 10, 100) == []
    assert svg.apart([5, 50], 10, 100) == [5, 50]
    assert svg.apart([5, 6, 7, 50], 10, 100) == [5, 15, 25, 50]
    assert svg.apart([50, 99, 100, 100], 10, 100) == [50, 80, 90, 100]


def test_curves_have_gaps_where_nothing_is_known() -> None:
    axis, scale = svg.TimeAxis(10), svg.Scale(1, 0, 100)
    drawn = svg.curve([(0, 0.0), (1, 1.0), (2, None), (3, 1.0)], axis, scale, "x")
    assert drawn.count("<polyline") == 1
    assert drawn.count("<circle") == 1


def full() -> Recording:
    """A run with everything that can be in one, and text that wants to be markup."""
    evil = '</script><b onmouseover="x">&'
    return recording(
        pool=f"coder {evil}",
        samples=tuple(
            sample(
                float(n),
                wanted=2,
                ready=1,
                in_flight=n % 5 if n % 7 else None,
                decided=2,
                why="Up",
                because=evil,
                replicas=(
                    replica(
                        "coder-b200-0", list(State)[n // 8 % 6], in_flight=n % 4, kv_used_tokens=n, kv_total_tokens=99
                    ),
                    replica("coder-b300-0", State.STARTING),
                ),
            )
            for n in range(40)
        ),
        requests=tuple(
            Request(at_s=n / 10, first_token_s=0.02, total_s=1.0, prompt_tokens=100, cached_tokens=90)
            for n in range(300)
        ),
        events=(Event(at_s=3, about="Node n", reason="NodeNotReady", message=evil, warning=True, count=2),),
        chapters=(
            Chapter(at_s=1, text="The pool is applied"),
            *(Chapter(at_s=1 + n / 10, text=evil) for n in range(12)),
            *(Chapter(at_s=39 + n / 10, text="The end") for n in range(4)),
        ),
        missed=3,
    )


@pytest.mark.parametrize("run", [full(), recording()], ids=["full", "empty"])
def test_the_page_stands_alone_and_is_well_formed(run: Recording) -> None:
    text = render(run)
    page = Page(text)
    assert page.fetched == []
    assert page.open == []
    assert not re.search(r"https?:|url\(|@import", text)
    for drawn in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(drawn)
        assert "nan" not in drawn
        assert "inf" not in drawn.replace("inference", "")
    assert "prefers-color-scheme: dark" in text


def test_foreign_text_stays_text() -> None:
    text = render(full())
    assert "<b onmouseover" not in text
    data = re.search(r'id="figures">(.*?)</script>', text, re.DOTALL)
    assert data
    assert len(json.loads(data[1])["rows"]) == 40


def test_the_page_says_what_happened() -> None:
    words = " ".join(Page(render(full())).words)
    assert "300 requests answered" in words
    assert "90.0% of 30,000 prompt tokens" in words
    assert "The pool is applied" in words
    assert "NodeNotReady" in words
    assert "(2 times)" in words
    assert "0 to 2 Up" in words
    assert "3 readings failed" in words
    for title in (
        "Demand and capacity",
        "Load per replica",
        "KV utilisation per replica",
        "Replicas",
        "Time to the first token (TTFT)",
        "Prefix cache hit rate",
        "Decisions",
        "Events",
    ):
        assert title in words
    assert "coder-b200-0 starting from 0:00 to 0:08 on n" in words


def test_the_page_is_the_same_for_the_same_run() -> None:
    assert render(full()) == render(full())
