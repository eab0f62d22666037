"""/metrics has the families, types, labels and buckets of a real SGLang 0.5.23, each from the same moment on."""

from __future__ import annotations

from typing import Any

import pytest

from contract.engine import exposition
from contract.engine.specs import fixture, read_spec
from sglpool.enginemodel.config import Request
from sglpool.enginemodel.engine import Engine
from sglpool.sandbox.engine.telemetry import Telemetry

REAL: dict[str, dict[str, Any]] = fixture("metric_families.json")
UNREAD = {"sglang:spec_verify_calls_total", "sglang:num_retracted_requests_total"}
"""Known from SGLang's code; the server that was read had no draft and never retracted."""


class Server:
    """An engine and its telemetry."""

    def __init__(self, **settings: Any) -> None:
        spec = read_spec(**settings)
        self.engine = Engine(spec.engine)
        self.telemetry = Telemetry(spec, self.engine)
        self.now_s = 0.0
        self.telemetry.on_http("/metrics", "GET")
        self.telemetry.on_http("/ready", "GET")
        self.telemetry.on_http_done("/ready", "GET", 503)

    def serve(self, rid: str, *, prompt_tokens: int = 40, output_tokens: int = 20, streaming: bool = False) -> None:
        """Serve one request to its end; one without streaming and with one token may be a probe."""
        ids = b"".join(index.to_bytes(8, "big") for index in range(prompt_tokens + output_tokens))
        self.engine.submit(
            Request(rid=rid, ids=ids, prompt_tokens=prompt_tokens, output_tokens=output_tokens), self.now_s
        )
        if rid != "probe":
            self.telemetry.on_request(rid, self.now_s, streaming=streaming)
        while (due_s := self.engine.next_event_s()) is not None:
            self.now_s = due_s
            for step in self.engine.advance(due_s):
                self.telemetry.on_step(step)

    def scrape(self) -> dict[str, exposition.Family]:
        """Families of a scrape now."""
        return exposition.parse(self.telemetry.text(self.now_s).decode())


def names(*moments: str) -> set[str]:
    """Real families that exist after these moments."""
    return {name for name, family in REAL.items() if family["when"] in ("always", *moments)}


def everything() -> dict[str, exposition.Family]:
    """A scrape after everything that makes a family appear."""
    server = Server(host_total_tokens=257_202)
    server.serve("warm-up")
    server.serve("stream", streaming=True)
    server.telemetry.on_abort("gone")
    return server.scrape()


def test_sixty_nine_families_exist_at_the_first_scrape() -> None:
    families = Server().scrape()
    assert set(families) == names()
    assert len(families) == 69
    for name in ("num_running_reqs", "num_queue_reqs", "token_usage", "kv_used_tokens"):
        assert list(families[f"sglang:{name}"].samples.values()) == [0.0]


def test_health_probes_add_four_families() -> None:
    server = Server()
    server.serve("probe", prompt_tokens=1, output_tokens=1)
    added = set(server.scrape()) - names()
    assert added == {
        "sglang:queue_time_seconds",
        "sglang:per_stage_req_latency_seconds",
        "sglang:realtime_tokens_total",
        "sglang:cuda_graph_passes_total",
    }


def test_the_first_request_adds_the_request_families() -> None:
    server = Server()
    server.serve("warm-up")
    assert set(server.scrape()) == names("scheduled", "request")


@pytest.mark.parametrize("moment", ["hit", "stream", "abort"])
def test_the_last_three_families_appear_with_their_event(moment: str) -> None:
    server = Server()
    server.serve("warm-up")
    if moment == "hit":
        server.serve("again")
    elif moment == "stream":
        server.serve("other", streaming=True, prompt_tokens=1)
    else:
        server.telemetry.on_abort("gone")
    assert set(server.scrape()) == names("scheduled", "request", moment)


def test_hicache_adds_eleven_families_and_nothing_else_does() -> None:
    assert set(Server(host_total_tokens=257_202).scrape()) == names("hicache")
    assert len(names("hicache")) == 69 + 11


@pytest.mark.parametrize("name", REAL)
def test_type_labels_and_buckets_are_the_real_ones(name: str) -> None:
    family = everything()[name]
    real = REAL[name]
    assert family.kind == real["type"]
    assert family.label_sets() == {tuple(real["labels"])}
    assert family.bounds() == real.get("buckets", [])


def test_no_family_is_exported_that_the_real_server_lacks() -> None:
    assert set(everything()) == set(REAL)
    server = Server(speculative=True)
    server.serve("warm-up")
    assert set(server.scrape()) - set(REAL) == {"sglang:spec_verify_calls_total"} <= UNREAD


def test_scheduler_labels_carry_no_dp_rank() -> None:
    (_, labels), *_ = everything()["sglang:num_running_reqs"].samples
    assert labels == (
        ("engine_type", "unified"),
        ("model_name", "m"),
        ("moe_ep_rank", "0"),
        ("pp_rank", "0"),
        ("tp_rank", "0"),
    )


@pytest.mark.parametrize("name", ["prompt_tokens_total", "generation_tokens_total", "num_requests_total"])
def test_token_and_request_counters_are_split_by_streaming(name: str) -> None:
    series = {dict(labels)["is_streaming"] for _, labels in everything()[f"sglang:{name}"].samples}
    assert series == {"true", "false"}


def test_constants_come_once_per_rank_and_live_gauges_from_rank_zero() -> None:
    families = Server(ranks=2, host_total_tokens=128_601).scrape()
    sizes = families["sglang:max_total_num_tokens"].samples
    assert [dict(labels)["tp_rank"] for _, labels in sizes] == ["0", "1"]
    assert set(sizes.values()) == {1_383_441}
    for name in ("hicache_host_total_tokens", "hicache_host_used_tokens", "kv_evictable_tokens"):
        assert [dict(labels)["tp_rank"] for _, labels in families[f"sglang:{name}"].samples] == ["0"]


def test_utilization_is_always_zero() -> None:
    server = Server(max_running_requests=1)
    server.serve("long", output_tokens=400)
    assert set(server.scrape()["sglang:utilization"].samples.values()) == {0.0}


def test_histograms_add_up() -> None:
    for name, family in everything().items():
        if family.kind != "histogram":
            continue
        buckets: dict[exposition.Labels, list[float]] = {}
        for (sample, labels), count in family.samples.items():
            if sample.endswith("_bucket"):
                buckets.setdefault(tuple(pair for pair in labels if pair[0] != "le"), []).append(count)
        for labels, counts in buckets.items():
            assert counts == sorted(counts), name
            assert counts[-1] == family.samples[f"{name}_count", labels]
