"""GET of small answers from pods, by their IP: a limit on time, size and number.

A connection is used once: what is asked every 15 s needs none kept open, and a kept one might lead to a pod that is
gone. A plain socket does: with a client made for everything, asking would be half of the work of a tick. Not here: how
an answer is framed (`answers`), and what it means.
"""

import asyncio
import os
import socket

from sglpool.signals.answers import Answer
from sglpool.signals.fields import Unreadable

LIMIT_S = 2.0
"""Longest wait for one answer, connecting included."""
MAX_CONNECTIONS = 256
"""Most pods asked at a time, over all pools."""
MAX_ANSWER_BYTES = 8 * 2**20
"""A router with a thousand replicas says half a megabyte."""
_READ_BYTES = 64 * 2**10


class Web:
    """Asks pods. Use as an async context manager.

    Args:
        limit_s: Longest wait for one answer.
    """

    def __init__(self, *, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._room = asyncio.Semaphore(MAX_CONNECTIONS)

    async def __aenter__(self) -> "Web":
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is kept open between two questions."""

    async def get(self, address: str, port: int, path: str) -> bytes:
        """The body of an answer with status 200.

        Raises:
            Unreadable: No answer in time, another status, or too long an answer.
        """
        try:
            async with asyncio.timeout(self._limit_s), self._room:
                return await _ask(address, port, path)
        except TimeoutError:
            raise Unreadable(f"does not answer {path} in {self._limit_s:g} s") from None


async def _ask(address: str, port: int, path: str) -> bytes:
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as pod:
        pod.setblocking(False)
        try:
            await loop.sock_connect(pod, (address, port))
        except (OSError, ValueError) as error:
            raise Unreadable(f"cannot be reached: {_cause(error)}") from None
        answer = Answer(path, MAX_ANSWER_BYTES)
        try:
            await loop.sock_sendall(pod, _question(address, port, path))
            while not answer.whole:
                answer.take(await loop.sock_recv(pod, _READ_BYTES))
        except OSError as error:
            raise Unreadable(f"breaks off its answer to {path}: {type(error).__name__}") from None
        return answer.body()


def _question(address: str, port: int, path: str) -> bytes:
    host = f"[{address}]" if ":" in address else address
    return f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode()


def _cause(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
