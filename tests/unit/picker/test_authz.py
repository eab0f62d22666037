"""The hand-made server for Envoy's questions: every split of the bytes, and what is turned away."""

from __future__ import annotations

import asyncio
import itertools
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglpool.picker.authz import MAX_HEAD_BYTES, AuthzProtocol, AuthzServer, parse_head, render
from sglpool.picker.decider import StoredDecider
from sglpool.picker.ledger import Refused
from sglpool.picker.metrics import Metrics
from sglpool.routing.keys import key_of
from unit.picker.parts import key, make_ledger, picked

QUESTION = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: picker\r\ncontent-length: 0\r\n"
    b"X-Sglpool-Key-Session: abc\r\nx-sglpool-length: 400000\r\n\r\n"
)


class Wire:
    """The transport of a connection, without one."""

    def __init__(self) -> None:
        self.sent = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.sent += data

    def get_extra_info(self, _name: str) -> None:
        return None

    def close(self) -> None:
        self.closed = True

    abort = close


def connect(replicas: int = 2) -> tuple[AuthzProtocol, Wire, StoredDecider]:
    metrics = Metrics()
    decider = StoredDecider(make_ledger(replicas), None)
    protocol = AuthzProtocol(decider, metrics, set())
    wire = Wire()
    protocol.connection_made(wire)  # type: ignore[arg-type]
    return protocol, wire, decider


@given(st.lists(st.integers(1, 2 * len(QUESTION) - 1), max_size=6))
def test_questions_are_answered_however_the_bytes_come(cuts):
    protocol, wire, _ = connect()
    data = QUESTION + QUESTION
    edges = [0, *sorted(cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        protocol.data_received(data[start:end])
    answers = wire.sent.split(b"\r\n\r\n")[:-1]
    assert len(answers) == 2
    for answer in answers:
        assert answer.startswith(b"HTTP/1.1 200 OK\r\nx-sglpool-destination: 10.0.0.")
        assert b"\r\nx-sglpool-pick: " in answer
        assert answer.endswith(b"\r\ncontent-length: 0")


def test_the_headers_decide_the_conversation():
    protocol, _, decider = connect()
    protocol.data_received(QUESTION)
    (reservation,) = decider._ledger.reservations.values()
    assert reservation.key == key_of({"x-sglpool-key-session": "abc"})
    assert reservation.body_bytes == 400_000


@pytest.mark.parametrize(
    ("more", "name"),
    [
        (b"", b"abc"),
        (b"x-sglpool-key-conversation: d e\r\n", b"abc\td e"),
        (b"x-sglpool-key-conversation: \xe9\r\n", b"abc\t\xe9"),
    ],
)
def test_envoy_is_told_which_conversation_goes_where(more: bytes, name: bytes):
    protocol, wire, decider = connect()
    protocol.data_received(QUESTION.replace(b"x-sglpool-length", more + b"x-sglpool-length"))
    (reservation,) = decider._ledger.reservations.values()
    assert b"\r\nx-sglpool-memo: " + reservation.address.encode() in wire.sent
    assert b" " + name + b"\r\ncontent-length: 0" in wire.sent


def test_a_request_of_no_conversation_is_not_remembered():
    protocol, wire, _ = connect()
    protocol.data_received(QUESTION.replace(b"X-Sglpool-Key-Session: abc\r\n", b""))
    assert b"x-sglpool-destination" in wire.sent
    assert b"x-sglpool-memo" not in wire.sent


def test_a_body_is_stepped_over():
    protocol, wire, _ = connect()
    protocol.data_received(QUESTION.replace(b"content-length: 0", b"content-length: 5") + b"hel")
    protocol.data_received(b"lo" + QUESTION)
    assert wire.sent.count(b"HTTP/1.1 200 OK") == 2


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", b"400"),
        (b"junk\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\ncontent-length: 999999\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * (MAX_HEAD_BYTES + 8), b"431"),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * (MAX_HEAD_BYTES + 8) + b"\r\n\r\n", b"431"),
    ],
)
def test_what_envoy_never_sends_is_turned_away(data, status):
    protocol, wire, decider = connect()
    protocol.data_received(data)
    assert wire.sent.startswith(b"HTTP/1.1 " + status)
    assert wire.closed
    assert not decider._ledger.reservations


def test_a_refusal_says_when_to_come_back_in_whole_seconds():
    assert render(Refused(2.2)).startswith(b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 3\r\n")
    assert b"retry-after: 1\r\n" in render(Refused(0.01))


def test_no_opinion_is_a_plain_yes():
    protocol, wire, _ = connect(0)
    protocol.data_received(QUESTION)
    assert wire.sent == b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


def test_header_names_are_folded():
    assert parse_head(b"GET / HTTP/1.1\r\nA-B:  c d \r\nE:") == {"a-b": "c d", "e": ""}


class SlowStore:
    """A store whose answer comes when the test says so."""

    available = True

    def __init__(self) -> None:
        self.answer = asyncio.Event()
        self.noted: list[object] = []

    async def fetch(self, _key: object) -> None:
        await self.answer.wait()

    def note(self, conversation: object, seen_home: object) -> None:
        self.noted.append((conversation, seen_home))


async def test_questions_wait_their_turn_while_the_store_is_asked():
    store = SlowStore()
    protocol = AuthzProtocol(StoredDecider(make_ledger(), store), Metrics(), set())
    wire = Wire()
    protocol.connection_made(wire)  # type: ignore[arg-type]
    protocol.data_received(QUESTION + QUESTION)
    assert not wire.sent
    store.answer.set()
    async with asyncio.timeout(5):
        while protocol._task is not None:
            await protocol._task
    assert wire.sent.count(b"200 OK") == 2
    assert len(store.noted) == 1, "the second request found the home that the first had made"


async def test_a_client_that_left_meanwhile_gets_nothing():
    store = SlowStore()
    protocol = AuthzProtocol(StoredDecider(make_ledger(), store), Metrics(), set())
    wire = Wire()
    protocol.connection_made(wire)  # type: ignore[arg-type]
    protocol.data_received(QUESTION)
    protocol.connection_lost(None)
    task = protocol._task
    assert task is not None
    store.answer.set()
    await asyncio.wait_for(task, 5)
    assert not wire.sent


async def test_a_question_that_nobody_waits_for_any_more_places_nothing(tmp_path: Path):
    path = tmp_path / "authz.sock"
    ledger, metrics = make_ledger(), Metrics()
    server = AuthzServer(path, StoredDecider(ledger, None), metrics)
    await server.start()
    # All of it happens while the picker stands still.
    for _ in range(3):
        with socket.socket(socket.AF_UNIX) as late:
            late.connect(str(path))
            late.sendall(QUESTION)
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(QUESTION)
    async with asyncio.timeout(5):
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
    writer.close()
    await server.stop()
    assert len(ledger.reservations) == 1
    assert metrics.registry.get_sample_value("sglpool_router_late_questions_total") == 3


async def test_the_socket_replaces_one_that_was_left_behind(tmp_path: Path):
    path = tmp_path / "authz.sock"
    ledger = make_ledger()
    for _ in range(2):
        server = AuthzServer(path, StoredDecider(ledger, None), Metrics())
        await server.start()
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(QUESTION)
        async with asyncio.timeout(5):
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        await server.stop()
        assert not path.exists()
        path.touch()


def test_a_pick_without_a_key_reserves_too():
    ledger = make_ledger()
    pick = picked(ledger.pick(None, {}))
    assert ledger.reservations[pick.pick_id].key is None
    assert not ledger.state.conversations
    assert key(1) not in ledger.state.conversations
