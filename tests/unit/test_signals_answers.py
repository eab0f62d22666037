"""Answers of HTTP as bytes come in: whole however they are cut, and an error where they are cut short."""

from __future__ import annotations

import pytest

from sglpool.signals.answers import MAX_HEAD_BYTES, Answer
from sglpool.signals.fields import Unreadable

OK = b"HTTP/1.1 200 OK\r\n"
LIMIT_BYTES = 1000
BODY = b'{"loads": []}'
PLAIN = OK + b"Content-Type: application/json\r\ncontent-length: 13\r\n\r\n" + BODY
CHUNKED = (
    OK + b"Transfer-Encoding: Chunked\r\n\r\n5;name=value\r\n" + BODY[:5] + b"\r\n8\r\n" + BODY[5:] + b"\r\n0\r\n\r\n"
)
TO_THE_END = OK + b"Server: uvicorn\r\n\r\n" + BODY
EMPTY = OK + b"Content-Length: 0\r\n\r\n"


def received(answer: bytes, *, at_a_time: int = 10_000) -> Answer:
    """An answer as a socket gives it, its end included if that is waited for."""
    found = Answer("/state", LIMIT_BYTES)
    for begin in range(0, len(answer), at_a_time):
        assert not found.whole, "more is read than there has to be"
        found.take(answer[begin : begin + at_a_time])
    if not found.whole:
        found.take(b"")
    return found


@pytest.mark.parametrize("at_a_time", [1, 2, 7, 10_000])
@pytest.mark.parametrize(
    ("answer", "body"), [(PLAIN, BODY), (CHUNKED, BODY), (TO_THE_END, BODY), (EMPTY, b"")], ids=str
)
def test_a_body_is_the_same_however_it_arrives(answer: bytes, body: bytes, at_a_time: int):
    assert received(answer, at_a_time=at_a_time).body() == body


def test_a_body_of_known_length_is_whole_while_the_connection_is_open():
    found = Answer("/state", LIMIT_BYTES)
    found.take(PLAIN)
    assert found.whole


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "it has no head"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "it has no head"),
        (PLAIN[:-1], "12 of 13 bytes"),
        (CHUNKED[:-5], "a chunk is missing"),
        (CHUNKED[:-12], "a chunk is cut"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nabcde\r\n0\r\n\r\n", "it has the length '-5'"),
        (OK + b"Content-Length: +13\r\n\r\n" + BODY, "it has the length '+13'"),
        (OK + b"Content-Length: 1f\r\n\r\n" + BODY, "it has the length '1f'"),
        (OK + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n", "it has the length '99999999999999999999'"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "it is no HTTP/1.1"),
        (b"\x15\x03\x01\x00\x02\x02\x46\r\n\r\n", "it is no HTTP/1.1"),
        (b"x" * (MAX_HEAD_BYTES + 1), "its head has no end"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_answer_that_is_none_or_ends_early_is_broken_off(answer: bytes, words: str):
    with pytest.raises(Unreadable) as error:
        received(answer, at_a_time=100_000).body()
    assert str(error.value) == f"breaks off its answer to /state: {words}"


@pytest.mark.parametrize("status", [b"500 Internal Server Error", b"302 Found", b"404"])
def test_another_status_is_said(status: bytes):
    with pytest.raises(Unreadable, match=rf"^answers /state with status {status[:3].decode()}$"):
        received(b"HTTP/1.1 " + status + b"\r\n\r\n")


@pytest.mark.parametrize(
    "head",
    [b"Content-Length: 1001\r\n\r\n", b"\r\n" + b"x" * 1001, b"Transfer-Encoding: chunked\r\n\r\n" + b"x" * 1001],
)
def test_a_body_beyond_the_limit_is_refused_before_it_is_read(head: bytes):
    with pytest.raises(Unreadable, match=r"^answers /state with more than 1000 bytes$"):
        Answer("/state", LIMIT_BYTES).take(OK + head)
