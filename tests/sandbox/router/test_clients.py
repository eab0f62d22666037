"""What clients see of a pool's endpoint: a plain OpenAI API, in which conversations stay where their cache is."""

from __future__ import annotations

import json
import subprocess
import time

import openai
import pytest

from sandbox.cluster.engines import address
from sandbox.router.routed_pool import FIRST_WORDS, RoutedPool, soon
from support.streaming import CHAT, SESSION, Conversation, Stream, chat, send

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(240)]

CLOSED = (
    ("GET", "/metrics"),
    ("GET", "/v1/loads"),
    ("GET", "/get_load"),
    ("GET", "/server_info"),
    ("GET", "/get_server_info"),
    ("GET", "/health"),
    ("GET", "/health_generate"),
    ("GET", "/ready"),
    ("GET", "/"),
    ("GET", "/v1/../metrics"),
    ("GET", "//metrics"),
    ("GET", "/%6detrics"),
    ("GET", "/v1/models/../../metrics"),
    ("POST", "/generate"),
    ("POST", "/flush_cache"),
    ("POST", "/abort_request"),
    ("POST", "/pause_generation"),
    ("POST", "/v1/chat/completions/"),
)


def test_the_client_of_openai_streams_and_does_not(routed: RoutedPool) -> None:
    url = f"http://{routed.router.address}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        assert [model.id for model in client.models.list()] == ["m"]
        question = [{"role": "user", "content": "Write a function."}]
        whole = client.chat.completions.create(model="m", messages=question, max_tokens=30)  # type: ignore[arg-type]
        assert whole.choices[0].message.content
        assert whole.usage is not None
        assert 0 < whole.usage.completion_tokens <= 30
        stream = client.chat.completions.create(
            model="m",
            messages=question,  # type: ignore[arg-type]
            max_tokens=700,
            stream=True,
            extra_body={"ignore_eos": True},
            stream_options={"include_usage": True},
        )
        events = list(stream)
        assert events[-1].usage is not None
        assert events[-1].usage.completion_tokens == 700
        text = "".join(choice.delta.content or "" for event in events for choice in event.choices)
        assert len(text) > 700
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="m", messages=question, max_tokens=10_000_000)  # type: ignore[arg-type]


def test_curl_is_client_enough(routed: RoutedPool) -> None:
    url = f"http://{routed.router.address}{CHAT}"
    command = ["curl", "-sS", "--max-time", "30", url, "-H", "Content-Type: application/json"]
    done = subprocess.run([*command, "-d", json.dumps(chat("hello"))], capture_output=True, timeout=60, check=True)
    assert json.loads(done.stdout)["choices"][0]["message"]["content"]


def test_a_conversation_stays_over_twenty_turns(routed: RoutedPool) -> None:
    talk = Conversation("long-talk")
    first = talk.turn(routed.router.address, f"long-talk\n{FIRST_WORDS}")
    home = routed.homes("long-talk")
    cached = [first.cached_tokens]
    for number in range(20):
        reply = talk.turn(routed.router.address, f"turn {number}")
        assert reply.cached_tokens > reply.prompt_tokens - 200, f"turn {number} is warm"
        cached.append(reply.cached_tokens)
    assert routed.homes("long-talk") == home
    assert cached == sorted(cached)


def test_conversations_spread_and_requests_without_a_session_find_their_cache(routed: RoutedPool) -> None:
    before = routed.router.homes()
    talks = {number: [f"task {number}\n{FIRST_WORDS}"] for number in range(8)}
    for contents in talks.values():
        first = send(routed.router.address, body=chat(*contents))
        contents += [first.text, "go on"]
    new = {session: home for session, home in routed.router.homes().items() if session not in before}
    assert len(new) == len(talks), "the first message is the key"
    assert len(set(new.values())) > 1
    for contents in talks.values():
        reply = send(routed.router.address, body=chat(*contents))
        assert reply.cached_tokens > reply.prompt_tokens / 2


def test_a_thick_session_spreads(routed: RoutedPool) -> None:
    soon(lambda: routed.router.state()["in_flight"] == 0, "nobody else is here")
    with routed.open(routed.router, *["crowd"] * 8) as streams:
        counts = sorted(replica["in_flight"] for replica in routed.router.state()["replicas"])
        assert sum(counts) == len(streams.all)
        assert counts[-1] <= 4, "more than one replica carries it"
        assert counts[0] >= 1
        assert not streams.flowing()


def test_a_client_that_vanishes_gives_its_slot_back_at_once(routed: RoutedPool) -> None:
    router = routed.router
    soon(lambda: router.state()["in_flight"] == 0, "nobody else is here")

    def released_after_s(number: int) -> float:
        with routed.open(router, f"gone-{number}") as streams:
            assert router.state()["in_flight"] == 1
            streams.all[0].hang_up()
            return soon(lambda: router.state()["in_flight"] == 0, "the slot is free")

    # The best of some: the machine has other work.
    assert min(released_after_s(number) for number in range(3)) < 1.0


@pytest.mark.parametrize(("method", "path"), CLOSED)
def test_what_is_not_the_serving_api_is_closed(routed: RoutedPool, method: str, path: str) -> None:
    body = b"{}" if method == "POST" else None
    assert send(routed.router.address, path, body, method=method).status == 404


def test_what_a_client_says_about_routing_is_not_believed(routed: RoutedPool) -> None:
    router, talk = routed.router, Conversation("honest")
    talk.turn(router.address, f"honest\n{FIRST_WORDS}")
    home = routed.homes("honest")
    (uid,) = home.values()
    others = [each for each in router.state()["replicas"] if each["uid"] != uid]
    for other in others:
        forged = {
            "x-sglpool-destination": other["address"],
            "x-sglpool-pick": "r1.1.forged",
            "x-sglpool-key-session": f"somebody-{other['pod']}",
            "x-sglpool-key-conversation": "else",
            "x-sglpool-length": "999999999",
            "x-envoy-upstream-rq-timeout-ms": "1",
        }
        # Envoy tells of ended requests every 20 ms: an agent is never as fast as this test.
        soon(lambda: routed.router.state()["in_flight"] == 0, "the turn before has ended")
        reply = talk.turn(router.address, **forged)
        assert reply.cached_tokens > reply.prompt_tokens / 2, "served at home all the same"
    assert routed.homes("honest") == home
    assert not any(name.startswith("x-sglpool") for name in reply.headers), "and nothing of it is told"


@pytest.mark.parametrize(
    "body",
    [b"{", b"", b"[]", b'{"model": "m"}', b'{"model": "m", "messages": "no"}', b"\xff\xfe\x00"],
)
def test_what_the_engine_refuses_passes_through(routed: RoutedPool, body: bytes) -> None:
    engine = address(next(iter(routed.engines().values())))
    refused = send(engine, CHAT, body, method="POST")
    assert 400 <= refused.status < 500
    passed = send(routed.router.address, CHAT, body, method="POST")
    assert (passed.status, passed.body) == (refused.status, refused.body)


def test_a_model_of_another_name_is_the_engines_business(routed: RoutedPool) -> None:
    body = chat("hello") | {"model": "nobody-knows"}
    engine = address(next(iter(routed.engines().values())))
    assert send(routed.router.address, body=body).status == send(engine, body=body).status


def test_giant_headers_are_refused_and_long_ones_are_not(routed: RoutedPool) -> None:
    long = {SESSION: "s" * 20_000}
    assert send(routed.router.address, body=chat("hello"), **long).status == 200
    assert send(routed.router.address, body=chat("hello"), **{SESSION: "s" * 100_000}).status == 431
    assert routed.ask("after-giants").status == 200


def test_other_apis_reach_an_engine(routed: RoutedPool) -> None:
    place = routed.router.address
    user = [{"role": "user", "content": "hello"}]
    for path, body in {
        "/v1/completions": {"model": "m", "prompt": "hello", "max_tokens": 4},
        "/v1/responses": {"model": "m", "input": "hello", "max_output_tokens": 4},
        "/v1/messages": {"model": "m", "messages": user, "max_tokens": 4},
        "/tokenize": {"model": "m", "prompt": "hello"},
    }.items():
        assert send(place, path, body).status == 200, path
    assert send(place, "/v1/models").status == 200


def test_the_routers_are_shown(routed: RoutedPool) -> None:
    with routed.open(routed.router, "shown"):
        done = routed.sglpool("router", "show", routed.pool.name)
    assert done.returncode == 0, done.stderr
    header, _, *rows = done.stdout.splitlines()
    assert header.startswith("Pool main: 1 router, ")
    assert sorted(row.split()[0] for row in rows) == sorted(routed.engines())
    assert sum(float(row.split()[2]) for row in rows) >= 1, "one of them is at work"


def test_a_stream_ends_with_all_its_tokens(routed: RoutedPool) -> None:
    began_s = time.monotonic()
    stream = Stream(routed.router.address, "to-the-end", tokens=4000)
    soon(lambda: stream.ended, "the stream ends", timeout_s=60)
    stream.hang_up()
    assert (stream.finished, stream.broken) == (True, "")
    assert stream.events >= 4000 / 200
    assert stream.last_s > began_s
