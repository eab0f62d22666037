"""/v1/loads and /server_info have the keys, order and meaning of a real SGLang 0.5.23."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from contract.engine.specs import fixture, read_spec
from sglpool.enginemodel.config import Request
from sglpool.enginemodel.engine import Engine
from sglpool.sandbox.engine import loads, server_info
from sglpool.sandbox.engine.telemetry import Telemetry

REAL = fixture("loads.json")
UNIX_S = 1_795_969_285.5


class Server:
    """An engine and what /v1/loads says of it."""

    def __init__(self, **settings: Any) -> None:
        self.spec = read_spec(**settings)
        self.engine = Engine(self.spec.engine)
        self.telemetry = Telemetry(self.spec, self.engine)
        self.now_s = 0.0

    def submit(self, rid: str, prompt_tokens: int, output_tokens: int) -> None:
        """Hand over a prompt like no other."""
        ids = b"".join(f"{rid[-3:]:>3}{index:05}".encode() for index in range(prompt_tokens + output_tokens))
        request = Request(rid=rid, ids=ids, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        self.telemetry.on_request(rid, self.now_s, streaming=True)
        self.engine.submit(request, self.now_s)

    def step(self) -> bool:
        """Let one step end; False when nothing runs."""
        due_s = self.engine.next_event_s()
        if due_s is None:
            return False
        self.now_s = due_s
        for step in self.engine.advance(due_s):
            self.telemetry.on_step(step)
        return True

    def get(self, **query: str) -> tuple[int, str, str]:
        """Status, content type and body."""
        status, content_type, body = loads.answer(
            self.spec, self.engine, self.telemetry, query, now_s=self.now_s, unix_s=UNIX_S
        )
        return status, content_type, body.decode()

    def body(self, **query: str) -> dict[str, Any]:
        """The JSON body of an answer that must be a 200."""
        status, content_type, body = self.get(**query)
        assert (status, content_type) == (200, "application/json")
        parsed: dict[str, Any] = json.loads(body)
        return parsed

    def load(self, **query: str) -> dict[str, Any]:
        """The one rank's part."""
        (load,) = self.body(**query)["loads"]
        assert isinstance(load, dict)
        return load


def shape(body: Any) -> Any:
    """Keys in order, and types in place of values; a whole float stays a float."""
    if isinstance(body, dict):
        return [(key, shape(value)) for key, value in body.items()]
    if isinstance(body, list):
        return [shape(value) for value in body]
    return type(body).__name__


def test_body_before_any_request_is_the_real_one() -> None:
    real = REAL["bodies"]["starting"]
    body = Server().body()
    assert shape(body) == shape(real)
    assert body["timestamp"].endswith("+00:00")
    ours, theirs = dict(body["loads"][0]), dict(real["loads"][0])
    assert ours.pop("timestamp") == UNIX_S
    theirs.pop("timestamp")
    assert ours == theirs


def test_a_chunked_prefill_is_neither_running_nor_waiting_while_its_tokens_grow() -> None:
    server = Server()
    server.submit("long", 30_000, 10)
    seen = []
    while server.engine.load().used_tokens < 24_576:
        assert server.step()
        seen.append(server.load())
    # The chunk being computed holds its tokens already, and is uncached still.
    assert [load["num_used_tokens"] for load in seen] == [16_384, 24_576]
    assert [load["num_waiting_uncached_tokens"] for load in seen] == [30_000 - 8192, 30_000 - 16_384]
    for load in seen:
        assert (load["num_running_reqs"], load["num_waiting_reqs"], load["queues"]["waiting"]) == (0, 0, 0)
        assert load["num_total_tokens"] == load["num_active_tokens"] == load["num_used_tokens"]
    real = REAL["bodies"]["during_chunked_prefill"]["loads"][0]
    for key in ("num_used_tokens", "num_total_tokens", "num_waiting_uncached_tokens", "token_usage"):
        assert seen[-1][key] == real[key]


def test_waiting_tokens_are_in_the_total_but_not_in_use() -> None:
    server = Server(max_running_requests=4, max_queued_requests=2)
    for index in range(4):
        server.submit(f"run{index}", 100, 2000)
        server.step()
    for index in range(2):
        server.submit(f"wait{index}", 50, 10)
    for _ in range(60):
        server.step()
    load = server.load()
    assert (load["num_running_reqs"], load["num_waiting_reqs"], load["queues"]["waiting"]) == (4, 2, 2)
    assert load["num_waiting_uncached_tokens"] == 100
    assert load["num_total_tokens"] == load["num_used_tokens"] + 100
    assert load["gen_throughput"] > 0
    assert shape(load) == shape(REAL["bodies"]["full_queue"]["loads"][0])


def test_decode_is_published_every_fifteen_steps_and_idle_at_once() -> None:
    server = Server()
    for index in range(3):
        server.submit(f"s{index}", 10, 200)
    used = []
    while server.step():
        used.append(server.load()["num_used_tokens"])
    grown = [after - before for before, after in itertools.pairwise(used[20:180])]
    assert set(grown) == {0, 45}
    assert used[-1] == 0
    assert server.load()["gen_throughput"] == 0.0


def test_timestamp_is_the_snapshots_when_busy_and_now_when_idle() -> None:
    server = Server(speed=10.0)
    server.submit("one", 10, 100)
    for _ in range(40):
        server.step()
    taken_s = server.engine.published.at_s
    assert taken_s < server.now_s
    assert server.load()["timestamp"] == pytest.approx(UNIX_S - (server.now_s - taken_s) / 10, abs=1e-6)
    while server.step():
        pass
    server.now_s += 100
    assert server.load()["timestamp"] == UNIX_S


def test_core_leaves_the_sections_out() -> None:
    load = Server().load(include="core")
    real = [key for key, value in REAL["bodies"]["starting"]["loads"][0].items() if not isinstance(value, dict)]
    assert list(load) == real


@pytest.mark.parametrize(
    ("include", "sections"),
    [
        ("memory", {"memory"}),
        ("core,queues", {"queues"}),
        ("disagg, memory", {"disaggregation", "memory"}),
        ("all", {"memory", "disaggregation", "queues"}),
        ("spec", set()),
    ],
)
def test_include_picks_sections(include: str, sections: set[str]) -> None:
    load = Server().load(include=include)
    assert {key for key, value in load.items() if isinstance(value, dict)} == sections
    assert "num_running_reqs" in load


def test_an_unknown_section_is_refused_by_name() -> None:
    status, _, body = Server().get(include="core,cpu")
    assert status == 400
    assert "Invalid include sections: {'cpu'}" in json.loads(body)["detail"]


def test_ranks_are_filtered() -> None:
    assert len(Server().body(dp_rank="0")["loads"]) == 1
    assert Server().body(dp_rank="3")["loads"] == []
    assert Server().get(dp_rank="x")[0] == 422


def test_prometheus_format_has_underscore_names_and_gauges() -> None:
    status, content_type, body = Server().get(format="prometheus")
    assert status == 200
    assert content_type.startswith("text/plain")
    types = [line.split() for line in body.splitlines() if line.startswith("#")]
    assert [name for _, _, name, _ in types] == REAL["prometheus_names"]
    assert {kind for *_, kind in types} == {"gauge"}
    assert 'sglang_max_total_num_tokens{dp_rank="0"} 1383441\n' in body


def test_num_accelerators_is_the_tensor_parallel_size() -> None:
    assert Server(ranks=2).body()["num_accelerators"] == 2


def test_a_draft_adds_the_speculative_section_once_it_was_reported() -> None:
    server = Server(speculative=True)
    assert "speculative" not in server.load()
    server.submit("one", 10, 200)
    while server.step():
        pass
    load = server.load()
    assert load["speculative"] == {"accept_length": pytest.approx(3.0), "accept_rate": pytest.approx(2 / 7)}
    assert list(load).index("speculative") == list(load).index("memory") + 1


def info(server: Server) -> dict[str, Any]:
    """The body of /server_info."""
    body = server_info.body(server.spec, server.telemetry, {"lag_s": 0.0, "speed": 1.0, "simulated": True})
    parsed: dict[str, Any] = json.loads(body)
    return parsed


def test_server_info_shows_the_flag_at_the_top_and_the_effective_limit_inside() -> None:
    body = info(Server(max_running_requests=4096))
    assert body["max_running_requests"] is None
    assert body["internal_states"][0]["effective_max_running_requests_per_dp"] == 4096
    assert body["max_total_num_tokens"] == 1_383_441
    assert body["max_req_input_len"] == 163_834
    assert body["status"] == "ready"
    assert body["version"] == "0.5.23"


def test_server_info_has_the_real_fields() -> None:
    body = info(Server())
    assert {"launch_command", "startup_time", "kv_events", "internal_states", "decode_log_interval"} <= set(body)
    assert set(body["startup_time"]) == {
        *("load_weight", "kv_cache_allocation", "scheduler_e2e", "cuda_graph", "tokenizer_e2e"),
    }
    assert list(body["internal_states"][0]["memory_usage"]) == [
        *("weight", "kvcache", "startup_available", "token_capacity", "token_capacity_swa", "graph"),
    ]


def test_server_info_says_that_it_is_simulated() -> None:
    body = info(Server())
    assert body["simulated"] is True
    assert body["internal_states"][0]["simulation"] == {"lag_s": 0.0, "speed": 1.0, "simulated": True}
