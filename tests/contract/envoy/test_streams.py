"""Streams: never held back, ended when the client leaves, and outliving whatever changes around them."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from typing import Any

import pytest

from sglpool.routing import pickerconfig as names
from support.envoy_peers import Answer
from support.envoy_process import endpoint
from support.waiting import wait_until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
SESSION = {"x-session-id": "s1"}
FIRST = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}]}\n\n'
REST = (
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}\n\n',
    b"data: [DONE]\n\n",
)
STREAM = Answer(headers={"content-type": "text/event-stream"}, chunks=(FIRST, *REST), hold=True)


class Stream:
    """A stream of which the first event has come."""

    def __init__(self, router: Any) -> None:
        router.a.answer = STREAM
        self.connection: http.client.HTTPConnection = router.envoy.connect()
        self.connection.request("POST", "/v1/chat/completions", b"{}", SESSION)
        self.response = self.connection.getresponse()
        assert self.response.read(len(FIRST)) == FIRST

    def finish(self, router: Any) -> None:
        """Let the rest come, and see that all of it does."""
        router.a.release()
        assert self.response.read() == b"".join(REST)
        self.connection.close()


def test_a_chunk_passes_before_the_next_one_exists(router: Any) -> None:
    stream = Stream(router)
    stream.finish(router)
    (entry,) = router.envoy.wait_logged()
    assert (entry["finish"], entry["prompt_tokens"], entry["flags"]) == ("stop", "9", "-")


def test_a_client_that_leaves_ends_the_stream_and_is_logged_within_a_second(router: Any) -> None:
    stream = Stream(router)
    stream.response.close()
    stream.connection.close()
    (entry,) = router.envoy.wait_logged()
    assert (entry["flags"], entry["upstream"], entry["pick"]) == ("DC", router.a.address, "pick-1")
    assert entry["finish"] == "-"
    wait_until(lambda: router.a.gone, timeout_s=5, describe="the engine notices")


def test_a_client_that_leaves_before_the_first_byte_is_logged_too(router: Any) -> None:
    router.a.silent = True
    connection = router.envoy.connect()
    connection.request("POST", "/v1/chat/completions", b"{}", SESSION)
    wait_until(lambda: router.a.seen, timeout_s=5, describe="the request at the engine")
    connection.close()
    (entry,) = router.envoy.wait_logged()
    assert (entry["flags"], entry["pick"]) == ("DC", "pick-1")


def test_a_stream_outlives_its_replicas_removal(router: Any) -> None:
    stream = Stream(router)
    router.envoy.write_engines([endpoint(router.b.address)])
    router.envoy.wait_host(router.a.address, "gone")
    assert router.envoy.request(body=CHAT, headers=SESSION).status == 200
    assert router.counts() == [1, 1]
    stream.finish(router)


def test_a_stream_outlives_a_failed_health_check_and_a_drain(router: Any) -> None:
    stream = Stream(router)
    router.a.ready = False
    router.envoy.wait_host(router.a.address, "failed")
    router.envoy.write_engines([endpoint(router.a.address, "DRAINING"), endpoint(router.b.address)])
    stream.finish(router)


def test_a_stream_outlives_the_picker(router: Any) -> None:
    stream = Stream(router)
    router.picker.kill()
    stream.finish(router)


def test_a_stream_of_a_killed_replica_breaks_alone(router: Any) -> None:
    stream = Stream(router)
    router.a.kill()
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        stream.response.read()
    stream.connection.close()
    stream.response.close()
    router.pick(router.b, router.a)
    assert router.envoy.request(body=CHAT).status == 200
    entries = router.envoy.wait_logged(2)
    assert [entry["upstream"] for entry in entries] == [router.a.address, router.b.address]
    assert entries[0]["flags"] != "-"


@pytest.mark.parametrize("text", ["", "{", '{"resources": [{"@type": "x"}]}', '{"resources": [{'])
def test_a_spoilt_file_of_engines_changes_nothing(router: Any, text: str) -> None:
    before = router.envoy.stat("cluster.engines.update_rejected") + router.envoy.stat("cluster.engines.update_failure")
    draft = router.envoy.folder / "draft"
    draft.write_text(text)
    draft.replace(router.envoy.folder / names.EDS_FILE)
    wait_until(
        lambda: (
            router.envoy.stat("cluster.engines.update_rejected") + router.envoy.stat("cluster.engines.update_failure")
            > before
        ),
        timeout_s=10,
        describe=router.envoy.log,
    )
    assert router.envoy.request(body=CHAT).status == 200


def test_a_new_replica_is_reached_once_it_is_ready(make_router: Callable[..., Any]) -> None:
    router = make_router(1)
    new = router.peers.engine()
    router.envoy.write_engines([endpoint(router.a.address), endpoint(new.address)])
    router.envoy.wait_host(new.address, "healthy")
    router.pick(new)
    assert router.envoy.request(body=CHAT).status == 200
    assert len(new.seen) == 1


def test_a_router_that_goes_is_unready_first_and_lets_streams_end(router: Any) -> None:
    envoy = router.envoy
    assert envoy.request("GET", "/readyz", port=envoy.health_port).status == 200
    assert envoy.request("GET", "/healthz", port=envoy.health_port).status == 200
    stream = Stream(router)
    envoy.admin("POST", "/healthcheck/fail")
    assert envoy.request("GET", "/readyz", port=envoy.health_port).status == 503
    assert envoy.request("GET", "/healthz", port=envoy.health_port).status == 200
    router.pick(router.b, router.a)
    reply = envoy.request(body=CHAT, headers=SESSION)
    assert (reply.status, reply.headers.get("connection")) == (200, "close")
    envoy.admin("POST", "/drain_listeners?graceful&skip_exit")
    stream.finish(router)


def test_the_health_port_serves_nothing_else(router: Any) -> None:
    for path in ("/", "/v1/models", "/stats", "/quitquitquit", "/clusters"):
        assert router.envoy.request("GET", path, port=router.envoy.health_port).status == 404


def test_log_lines_survive_that_the_picker_takes_the_file_away(router: Any) -> None:
    log = router.envoy.folder / names.ACCESS_LOG
    router.envoy.request(body=CHAT)
    router.envoy.wait_logged()
    log.rename(log.with_suffix(".old"))
    router.envoy.request(body=CHAT)
    router.envoy.admin("POST", "/reopen_logs")
    router.envoy.request(body=CHAT)
    wait_until(
        lambda: len(log.with_suffix(".old").read_text().splitlines()) + len(router.envoy.access_log()) == 3,
        timeout_s=10,
        describe="three lines in two files",
    )


def test_a_stream_on_which_nothing_moves_ends(make_router: Callable[..., Any]) -> None:
    router = make_router(stream_idle_timeout_s=1)
    router.a.silent = True
    reply = router.envoy.request(body=CHAT, headers=SESSION)
    assert reply.status == 504
    assert router.envoy.wait_logged()[0]["flags"] == "SI"
