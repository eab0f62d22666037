"""When the simulated engine's gauges are written, and what its counters count."""

from __future__ import annotations

from typing import Any

import pytest

from contract.engine.specs import read_spec
from sglpool.enginemodel.config import Request
from sglpool.enginemodel.engine import Engine
from sglpool.sandbox.engine.metrics import Histogram, number
from sglpool.sandbox.engine.telemetry import Telemetry


class Bench:
    """An engine and its telemetry, moved by hand as the driver moves them: one event at a time."""

    def __init__(self, **settings: Any) -> None:
        self.spec = read_spec(**settings)
        self.engine = Engine(self.spec.engine)
        self.telemetry = Telemetry(self.spec, self.engine)
        self.now_s = 0.0
        self._next = 0

    def submit(self, prompt_tokens: int, output_tokens: int, *, key: int | None = None, probe: bool = False) -> str:
        """Hand over one request; equal `key`s share their prompt."""
        self._next += 1
        rid = f"r{self._next}"
        ids = _ids(self._next + 1_000_000 if key is None else key, prompt_tokens + output_tokens)
        request = Request(rid=rid, ids=ids, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        if not probe:
            self.telemetry.on_request(rid, self.now_s, streaming=True)
        self.engine.submit(request, self.now_s)
        return rid

    def run_until(self, until_s: float) -> None:
        """Let the model time pass."""
        while (due_s := self.engine.next_event_s()) is not None and due_s <= until_s:
            self.now_s = due_s
            for step in self.engine.advance(due_s):
                self.telemetry.on_step(step)
        self.now_s = until_s

    def run_idle(self) -> float:
        """Run until nothing runs; the time of the last step."""
        while (due_s := self.engine.next_event_s()) is not None:
            self.run_until(due_s)
        return self.now_s

    def gauge(self, name: str) -> float:
        """A gauge as a scrape now would show it."""
        self.telemetry.tick(self.now_s)
        return self.telemetry.store.get(name)


def _ids(key: int, tokens: int) -> bytes:
    return b"".join((key * 10_000_000 + index).to_bytes(8, "big") for index in range(tokens))


def test_usage_of_a_short_request_stays_in_the_gauges_for_thirty_seconds() -> None:
    bench = Bench(max_total_tokens=60_000)
    bench.submit(9000, 2)
    idle_s = bench.run_idle()
    assert bench.gauge("num_running_reqs") == 0
    assert 9000 <= bench.gauge("num_used_tokens") <= 9002
    assert bench.gauge("token_usage") == pytest.approx(0.15)
    assert bench.engine.published.used_tokens == 0
    bench.run_until(idle_s + 29)
    assert bench.gauge("num_used_tokens") >= 9000
    bench.run_until(idle_s + 31)
    assert bench.gauge("num_used_tokens") == 0
    assert bench.gauge("token_usage") == 0


def test_gauges_fall_at_once_when_the_running_gauge_was_above_zero() -> None:
    bench = Bench()
    bench.submit(1000, 60)
    bench.run_until(0.5)
    assert bench.gauge("num_running_reqs") == 1
    bench.run_idle()
    assert bench.gauge("num_running_reqs") == 0
    assert bench.gauge("num_used_tokens") == 0
    assert bench.gauge("gen_throughput") == 0


def test_running_gauge_moves_only_every_fortieth_decode_step() -> None:
    bench = Bench()
    bench.submit(10, 1000)
    bench.run_until(0.35)
    assert bench.gauge("num_running_reqs") == 0
    assert bench.engine.load().running == 1
    bench.run_until(0.45)
    assert bench.gauge("num_running_reqs") == 1
    assert bench.gauge("gen_throughput") == pytest.approx(100, rel=0.05)


def test_a_request_in_chunked_prefill_is_in_no_gauge_but_its_tokens_are() -> None:
    bench = Bench()
    bench.submit(30_000, 10)
    while bench.engine.load().used_tokens < 24_576:
        due_s = bench.engine.next_event_s()
        assert due_s is not None
        bench.run_until(due_s)
    assert bench.gauge("num_running_reqs") == 0
    assert bench.gauge("num_queue_reqs") == 0
    assert bench.gauge("num_used_tokens") >= 24_576


def test_cached_prefixes_are_not_usage() -> None:
    bench = Bench()
    bench.submit(30_000, 1500)
    bench.run_idle()
    assert bench.gauge("token_usage") == 0
    assert bench.gauge("full_token_usage") == 0
    assert bench.gauge("kv_evictable_tokens") > 30_000
    pool = sum(bench.gauge(f"kv_{kind}_tokens") for kind in ("used", "evictable", "available"))
    assert pool == bench.gauge("max_total_num_tokens") == 1_383_441


def test_health_probes_count_only_in_the_schedulers_histograms() -> None:
    bench = Bench()
    bench.submit(1, 1, probe=True)
    bench.run_idle()
    store = bench.telemetry.store
    assert sum(store.histogram("queue_time_seconds").counts) == 1
    assert store.values["realtime_tokens_total"] == {("prefill_compute",): 1}
    assert not store.values["num_requests_total"]
    assert not store.values["prompt_tokens_total"]
    assert not store.histograms["time_to_first_token_seconds"]


def test_a_streams_tokens_are_counted_one_gap_each() -> None:
    bench = Bench()
    bench.submit(100, 11)
    bench.run_idle()
    gaps = bench.telemetry.store.histogram("inter_token_latency_seconds")
    assert sum(gaps.counts) == 10
    assert gaps.total == pytest.approx(0.1)
    first = bench.telemetry.store.histogram("time_to_first_token_seconds", "true")
    assert first.total == pytest.approx(100 * 2e-5)


def test_verified_tokens_share_their_steps_time() -> None:
    bench = Bench(speculative=True)
    bench.submit(100, 1 + 3 * 40)
    bench.run_idle()
    store = bench.telemetry.store
    assert store.get("spec_accept_length") == pytest.approx(3.0)
    assert store.get("spec_accept_rate") == pytest.approx(2 / 7)
    assert store.get("spec_num_draft_tokens") == 8
    assert store.get("spec_verify_calls_total") == 40
    gaps = store.histogram("inter_token_latency_seconds")
    assert sum(gaps.counts) == 120
    assert gaps.total == pytest.approx(0.4)


def test_hits_are_counted_by_tier_when_the_request_ends() -> None:
    bench = Bench()
    bench.submit(1000, 5, key=1)
    bench.run_idle()
    store = bench.telemetry.store
    assert not store.values["cached_tokens_total"]
    bench.submit(1000, 5, key=1)
    bench.run_idle()
    assert store.values["cached_tokens_total"] == {("device",): 999}
    assert store.get("prefill_effective_tokens_total", "device_hit") == 999
    assert store.get("cache_hit_rate") == pytest.approx(0.999)


def test_an_abort_counts_and_is_no_finished_request() -> None:
    bench = Bench()
    rid = bench.submit(1000, 500)
    bench.run_until(1.0)
    assert bench.engine.abort(rid, bench.now_s) is not None
    bench.telemetry.on_abort(rid)
    bench.run_idle()
    assert bench.telemetry.store.get("num_aborted_requests_total") == 1
    assert not bench.telemetry.store.values["num_requests_total"]


def test_decode_sums_leave_out_steps_after_a_gap() -> None:
    bench = Bench()
    bench.submit(100, 11)
    bench.run_idle()
    steps, batch, time_us, batch_squared, batch_time, tokens = bench.telemetry.decode_moments or [0.0] * 6
    assert (steps, batch, batch_squared, tokens) == (9, 9, 9, 9)
    assert time_us == pytest.approx(90_000, abs=20)
    assert batch_time == time_us


def test_clients_cannot_fill_the_memory_with_paths() -> None:
    bench = Bench()
    for index in range(2000):
        bench.telemetry.on_http(f"/{index}", "GET")
        bench.telemetry.on_http_done(f"/{index}", "GET", 404)
    assert len(bench.telemetry.store.values["http_requests_total"]) <= 500
    assert len(bench.telemetry.store.values["http_responses_total"]) <= 500
    assert set(bench.telemetry.store.values["http_requests_active"].values()) == {0}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.0"),
        (1383441, "1.383441e+06"),
        (1000000, "1e+06"),
        (999999.5, "999999.5"),
        (31111776000.0, "3.1111776e+10"),
        (0.17578125, "0.17578125"),
        (float("nan"), "NaN"),
        (float("inf"), "+Inf"),
    ],
)
def test_numbers_are_written_as_gos_client_does(value: float, text: str) -> None:
    assert number(value) == text


def test_a_value_on_a_bound_belongs_to_that_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
