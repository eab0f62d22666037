"""The simulated engine's HTTP manners: routes, keys, bodies and errors that have nothing to do with a model."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglpool.sandbox.engine.http import MAX_BODY_BYTES
from support.engine_process import EngineProcess

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with EngineProcess(tmp_path_factory.mktemp("engine"), "--skip-server-warmup") as engine:
        yield engine.wait_ready()


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    args = ("--api-key", "normal", "--admin-api-key", "admin", "--skip-server-warmup")
    with EngineProcess(tmp_path_factory.mktemp("keyed"), *args) as engine:
        yield engine.wait_ready()


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("path", ["/", "/get_load", "/v1/chat", "/v1/models/"])
def test_an_unknown_path_is_404_as_the_framework_says_it(engine: EngineProcess, path: str) -> None:
    answer = engine.get(path)
    assert (answer.status, answer.json()) == (404, {"detail": "Not Found"})


def test_a_wrong_method_is_405_and_says_which_are_right(engine: EngineProcess) -> None:
    answer = engine.get("/v1/chat/completions")
    assert (answer.status, answer.json()) == (405, {"detail": "Method Not Allowed"})
    assert answer.headers["allow"] == "POST"


def test_answers_come_from_uvicorn(engine: EngineProcess) -> None:
    assert engine.get("/v1/models").headers["server"] == "uvicorn"


def test_a_connection_is_kept_and_carries_several_requests(engine: EngineProcess) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=10)
    try:
        connection.request("GET", "/v1/models")
        connection.getresponse().read()
        first = connection.sock
        payload = json.dumps(CHAT | {"stream": True})
        connection.request("POST", "/v1/chat/completions", payload, {"Content-Type": "application/json"})
        assert connection.getresponse().read().endswith(b"data: [DONE]\n\n")
        connection.request("GET", "/ready")
        assert connection.getresponse().status == 200
        assert connection.sock is first
    finally:
        connection.close()


@pytest.mark.parametrize("body", [b"{", b"[]", b'"text"', b"\xff", b"", b"[" * 100_000])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"])
def test_a_body_that_is_no_json_object_is_400(engine: EngineProcess, path: str, body: bytes) -> None:
    answer = engine.request("POST", path, body, headers={"Content-Type": "application/json"})
    assert answer.status == 400
    assert "error" in answer.json() or answer.json()["object"] == "error"


def test_another_media_type_is_400(engine: EngineProcess) -> None:
    answer = engine.request("POST", "/v1/completions", b"{}", headers={"Content-Type": "text/plain"})
    assert answer.status == 400
    assert "application/json" in answer.json()["message"]


def test_a_body_over_the_bound_is_413(engine: EngineProcess) -> None:
    with socket.create_connection(("127.0.0.1", engine.port), timeout=30) as sock:
        sock.sendall(HEAD % 10**9)
        piece = b" " * 2**20
        for _ in range(MAX_BODY_BYTES // len(piece) + 1):
            sock.sendall(piece)
        assert sock.recv(4096).startswith(b"HTTP/1.1 413 ")
    assert engine.get("/ready").status == 200


def test_a_client_that_leaves_in_the_middle_of_its_body_harms_nobody(engine: EngineProcess) -> None:
    with socket.create_connection(("127.0.0.1", engine.port), timeout=10) as sock:
        sock.sendall(HEAD % 99 + b"{")
    assert engine.post("/v1/chat/completions", CHAT).status == 200
    assert "Traceback" not in engine.log()


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/chat/completions", "messages"),
        ("/v1/completions", "prompt"),
        ("/v1/messages", "max_tokens"),
        ("/v1/responses", "input"),
        ("/tokenize", "prompt"),
    ],
)
def test_a_missing_field_is_400_and_named(engine: EngineProcess, path: str, field: str) -> None:
    answer = engine.post(path, {"model": "m"})
    assert answer.status == 400
    assert field in answer.body.decode()
    assert "Field required" in answer.body.decode()


@pytest.mark.parametrize(
    "wrong",
    [{"max_tokens": "many"}, {"max_tokens": 0}, {"n": 2}, {"rid": ""}, {"messages": []}, {"messages": "hi"}],
)
def test_a_field_that_makes_no_sense_is_400(engine: EngineProcess, wrong: dict[str, Any]) -> None:
    answer = engine.post("/v1/chat/completions", CHAT | wrong)
    assert answer.status == 400
    assert answer.json()["code"] == 400


def test_another_model_name_is_served_and_repeated(engine: EngineProcess) -> None:
    answer = engine.post("/v1/chat/completions", CHAT | {"model": "other"})
    assert (answer.status, answer.json()["model"]) == (200, "other")


def test_unknown_fields_and_sampling_settings_are_ignored(engine: EngineProcess) -> None:
    settings = {"temperature": 0.3, "top_p": 0.9, "stop": ["x"], "logit_bias": {}, "seed": 1, "anything": {"a": 1}}
    assert engine.post("/v1/chat/completions", CHAT | settings).status == 200


@pytest.mark.parametrize("path", ["/health_generate", "/ready", "/metrics"])
def test_probes_and_metrics_need_no_key(keyed: EngineProcess, path: str) -> None:
    assert keyed.get(path).status == 200


@pytest.mark.parametrize("path", ["/v1/loads", "/server_info", "/v1/models", "/nope"])
def test_everything_else_needs_the_key(keyed: EngineProcess, path: str) -> None:
    refused = keyed.get(path)
    assert (refused.status, refused.json()) == (401, {"error": "Unauthorized"})
    assert keyed.get(path, headers=bearer("wrong")).status == 401
    assert keyed.get(path, headers=bearer("normal")).status in (200, 404)
    assert keyed.get(path, headers={"x-api-key": "normal"}).status in (200, 404)


def test_admin_calls_take_the_admin_key_only(keyed: EngineProcess) -> None:
    assert keyed.post("/flush_cache", {}).status == 401
    assert keyed.post("/flush_cache", {}, headers=bearer("normal")).status == 401
    assert keyed.post("/flush_cache", {}, headers=bearer("admin")).status == 200
    assert keyed.post("/v1/chat/completions", CHAT, headers=bearer("admin")).status == 401


def test_without_keys_admin_calls_are_open(engine: EngineProcess) -> None:
    assert engine.get("/flush_cache").status == 200


def test_a_taken_port_is_one_sentence_and_exit_code_1(engine: EngineProcess, tmp_path: Path) -> None:
    second = EngineProcess(tmp_path)
    second.argv[second.argv.index("--port") + 1] = str(engine.port)
    with second:
        assert second.wait_exit() == 1
        last = second.log().splitlines()[-1]
    assert last == f"sglpool: cannot listen on 127.0.0.1:{engine.port}: Address already in use."


def test_models_and_their_facts(engine: EngineProcess) -> None:
    models = engine.get("/v1/models").json()
    assert [card["id"] for card in models["data"]] == ["m"]
    assert models["data"][0]["max_model_len"] == 163840
    assert engine.get("/v1/models/m").json()["id"] == "m"
    assert engine.get("/v1/models/other").status == 404
    info = engine.get("/model_info").json()
    assert info["is_generation"] is True
    assert info["weight_version"] == "default"


def test_tokens_of_a_text_and_of_several(engine: EngineProcess) -> None:
    one = engine.post("/v1/tokenize", {"model": "m", "prompt": "abcdefgh!"}).json()
    assert (one["count"], len(one["tokens"])) == (3, 3)
    several = engine.post("/tokenize", {"model": "m", "prompt": ["abcd", "abcdefgh"]}).json()
    assert several["count"] == [1, 2]
    assert several["tokens"][0][0] == several["tokens"][1][0] == one["tokens"][0]


def test_server_info_says_that_it_is_simulated(engine: EngineProcess) -> None:
    info = engine.get("/server_info").json()
    assert info["simulated"] is True
    simulation = info["internal_states"][0]["simulation"]
    assert simulation["simulated"] is True
    assert simulation["speed"] == 50.0
    assert simulation["lag_s"] >= 0


def test_calls_are_counted_by_path_and_status(engine: EngineProcess) -> None:
    before = engine.metrics()
    engine.get("/v1/models/other")
    after = engine.metrics()
    changed = {name for name, value in after.items() if value != before.get(name, 0) and "http_responses_total" in name}
    assert any('status_code="404"' in name for name in changed)
