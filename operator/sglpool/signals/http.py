"""GET of small answers from pods, by their IP: one session, a limit on time, size and number.

A connection is used once: what is asked every 15 s needs none kept open, and a kept one might lead to a pod that is
gone. Not here: what the answers mean.
"""

import aiohttp

from sglpool.signals.fields import Unreadable

LIMIT_S = 2.0
"""Longest wait for one answer, connecting included."""
MAX_CONNECTIONS = 256
"""Most pods asked at a time, over all pools."""
MAX_ANSWER_BYTES = 8 * 2**20
"""A router with a thousand replicas says half a megabyte."""


class Web:
    """Asks pods. Use as an async context manager.

    Args:
        limit_s: Longest wait for one answer.
    """

    def __init__(self, *, limit_s: float = LIMIT_S) -> None:
        self._limit = aiohttp.ClientTimeout(total=limit_s)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Web":
        connector = aiohttp.TCPConnector(limit=MAX_CONNECTIONS, force_close=True)
        # Pods of the cluster, never through a proxy.
        self._session = aiohttp.ClientSession(connector=connector, trust_env=False, cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, address: str, port: int, path: str) -> bytes:
        """The body of an answer with status 200.

        Raises:
            Unreadable: No answer in time, another status, or too long an answer.
        """
        assert self._session is not None, "use it as a context manager"
        host = f"[{address}]" if ":" in address else address
        try:
            async with self._session.get(
                f"http://{host}:{port}{path}", timeout=self._limit, allow_redirects=False
            ) as response:
                if response.status != 200:
                    raise Unreadable(f"answers {path} with status {response.status}")
                body = await response.content.read(MAX_ANSWER_BYTES + 1)
                while len(body) <= MAX_ANSWER_BYTES and (more := await response.content.read(MAX_ANSWER_BYTES)):
                    body += more
        except TimeoutError:
            raise Unreadable(f"does not answer {path} in {self._limit.total:g} s") from None
        except aiohttp.ClientConnectorError as error:
            raise Unreadable(f"cannot be reached: {_cause(error)}") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unreadable(f"breaks off its answer to {path}: {type(error).__name__}") from None
        if len(body) > MAX_ANSWER_BYTES:
            raise Unreadable(f"answers {path} with more than {MAX_ANSWER_BYTES} bytes")
        return body


def _cause(error: aiohttp.ClientConnectorError) -> str:
    return "connection refused" if isinstance(error.os_error, ConnectionRefusedError) else error.os_error.strerror or ""
