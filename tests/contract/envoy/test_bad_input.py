"""What is closed, too large, unknown or malformed: each answered by whoever knows about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.envoy_peers import Answer
from support.waiting import wait_until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
SESSION = {"x-session-id": "s1"}
KEYS = {"alice": "key-of-alice", "bob": "key-of-bob"}

CLOSED = (
    "/", "/health", "/ready", "/metrics", "/generate", "/v1/loads", "/server_info", "/get_server_info", "/model_info",
    "/flush_cache", "/abort_request", "/v1/chat", "/v1/chat/completions/x", "/v1", "/update_weights_from_disk",
    "/v1/../generate", "/v1/chat/completions/../../../generate", "//generate", "/v1//../metrics", "/v1/models/../loads",
)  # fmt: skip


def test_only_the_serving_api_is_open(router: Any) -> None:
    for path in CLOSED:
        reply = router.envoy.request("POST", path, CHAT)
        assert reply.status == 404, path
        assert reply.json()["error"]["type"] == "not_found_error"
    assert router.counts() == [0, 0]
    assert not router.picker.seen


@pytest.mark.parametrize("path", ["/v1%2f..%2fgenerate", "/v1/models/%2e%2e%2f%2e%2e%2fgenerate", "/v1/models/..%5cx"])
def test_a_path_that_means_different_things_is_refused(router: Any, path: str) -> None:
    assert router.envoy.request("GET", path).status in (400, 404)
    assert router.counts() == [0, 0]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
def test_every_serving_path_asks_the_picker(router: Any, path: str) -> None:
    assert router.envoy.request("POST", f"{path}?beta=true", CHAT).status == 200
    assert router.picker.last().path == f"{path}?beta=true"
    assert router.a.seen[0].path == f"{path}?beta=true"


def test_what_the_engine_says_of_a_malformed_request_passes_unchanged(router: Any) -> None:
    words = b'{"object":"error","message":"Invalid JSON","type":"BadRequestError","param":null,"code":400}'
    router.a.answer = Answer(status=400, headers={"content-type": "application/json"}, chunks=(words,))
    reply = router.envoy.request(body=b'{"messages": [', headers={"content-type": "application/json"})
    assert (reply.status, reply.body) == (400, words)
    assert router.a.seen[0].body == b'{"messages": ['


@pytest.mark.parametrize(
    "body", [b"", b"\x00\xff" * 5000, b'"role"', b'{"role":"user"', b'"role":"user"}' * 3, b"[" * 900]
)
def test_no_body_upsets_the_fingerprint(router: Any, body: bytes) -> None:
    assert router.envoy.request(body=body).status == 200
    assert router.a.seen[0].body == body
    assert "lua" not in router.envoy.log()


def test_a_body_over_the_limit_gets_413(make_router: Callable[..., Any]) -> None:
    router = make_router(body_limit_bytes=100_000)
    assert router.envoy.request(body=b"x" * 100_000, headers=SESSION).status == 200
    reply = router.envoy.request(body=b"x" * 100_001, headers=SESSION)
    assert (reply.status, reply.json()["error"]["type"]) == (413, "invalid_request_error")
    assert router.counts() == [1, 0]


def _chunks(count: int) -> Iterator[bytes]:
    for _ in range(count):
        yield b"x" * 10_000


@pytest.mark.parametrize("headers", [SESSION, {}])
def test_a_body_over_the_limit_gets_413_though_its_length_was_not_said(
    make_router: Callable[..., Any], headers: dict[str, str]
) -> None:
    router = make_router(body_limit_bytes=100_000)
    connection = router.envoy.connect()
    connection.request("POST", "/v1/chat/completions", _chunks(30), dict(headers), encode_chunked=True)
    assert router.envoy.read(connection.getresponse()).status == 413
    connection.close()


def test_giant_headers_are_refused(router: Any) -> None:
    assert router.envoy.request(body=CHAT, headers={"x-session-id": "s" * 100_000}).status == 431
    assert router.envoy.request(body=CHAT, headers={"x-session-id": "s" * 20_000}).status == 200
    (seen,) = router.picker.seen
    assert len(seen.headers["x-sglpool-key-session"]) == 16


def test_without_any_replica_the_answer_is_503_with_retry_after(make_router: Callable[..., Any]) -> None:
    router = make_router(0)
    reply = router.envoy.request(body=CHAT)
    assert (reply.status, reply.headers["retry-after"]) == (503, "5")
    assert reply.json()["error"]["type"] == "service_unavailable_error"


def test_with_every_replica_down_the_answer_is_503_with_retry_after(router: Any) -> None:
    for engine in router.engines:
        engine.kill()
    reply = router.envoy.request(body=CHAT)
    assert (reply.status, reply.headers["retry-after"]) == (503, "5")
    for engine in router.engines:
        router.envoy.wait_host(engine.address, "failed")
    router.picker.kill()
    assert router.envoy.request(body=CHAT).status == 503


@pytest.fixture
def keyed(make_router: Callable[..., Any]) -> Any:
    return make_router(api_keys=KEYS)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"x-api-key": "wrong"},
        {"authorization": "Basic a2V5"},
        {"authorization": "Bearer"},
        {"authorization": "key-of-bob"},
        {"x-api-key": ""},
    ],
)
def test_without_a_valid_key_the_answer_is_401_also_while_the_picker_hangs(keyed: Any, headers: dict[str, str]) -> None:
    keyed.picker.hang = True
    reply = keyed.envoy.request(body=CHAT, headers=SESSION | headers)
    assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
    assert reply.json()["error"] == reply.json()["error"] | {"type": "authentication_error", "code": 401}
    assert keyed.envoy.wait_logged()[0]["status"] == "401"
    assert not keyed.picker.seen
    assert keyed.counts() == [0, 0]
    assert keyed.envoy.request("GET", "/v1/models", headers=headers).status == 401


@pytest.mark.parametrize("headers", [{"authorization": "Bearer key-of-alice"}, {"x-api-key": "key-of-bob"}])
def test_a_valid_key_opens_and_goes_no_further(keyed: Any, headers: dict[str, str]) -> None:
    assert keyed.envoy.request(body=CHAT, headers=headers).status == 200
    for seen in (keyed.picker.last(), keyed.a.seen[0]):
        assert not [value for value in seen.headers.values() if "key-of" in value]


def test_a_router_that_wants_keys_and_has_none_is_closed(make_router: Callable[..., Any]) -> None:
    router = make_router(api_keys={})
    assert router.envoy.request(body=CHAT, headers={"x-api-key": "any"}).status == 401


def test_new_keys_need_no_restart_and_cut_no_stream(keyed: Any) -> None:
    keyed.a.answer = Answer(chunks=(b"one", b"two"), hold=True)
    connection = keyed.envoy.connect()
    connection.request("POST", "/v1/chat/completions", b"{}", {"x-api-key": KEYS["alice"], **SESSION})
    response = connection.getresponse()
    assert response.read(3) == b"one"
    keyed.envoy.write_listener({"carol": "key-of-carol"})
    keyed.pick(keyed.b, keyed.a)
    wait_until(
        lambda: keyed.envoy.request(body=CHAT, headers={"x-api-key": "key-of-carol"}).status == 200,
        timeout_s=10,
        describe="the new key",
    )
    assert keyed.envoy.request(body=CHAT, headers={"x-api-key": KEYS["alice"]}).status == 401
    keyed.a.release()
    assert response.read() == b"two"
    # The answer had told nobody yet that this connection ends: the next one does, so an old key is soon of no use.
    connection.request("POST", "/v1/chat/completions", b"{}", {"x-api-key": KEYS["alice"]})
    assert connection.getresponse().getheader("connection") == "close"
    connection.close()
