"""An answer of HTTP/1.1 as it comes in: when it is whole, and its body.

Of the protocol only what one GET with `Connection: close` needs: a status, and a body that ends after its length, after
its last chunk or with the connection. Not here: sockets (`http`), and what a body means.
"""

from sglpool.signals.fields import Unreadable

MAX_HEAD_BYTES = 64 * 2**10
"""Servers send a few hundred."""
_LONGEST_CHUNK_LINE = 1024


class Answer:
    """One answer.

    Args:
        path: What was asked for, for the words of errors.
        limit_bytes: Longest body.
    """

    def __init__(self, path: str, limit_bytes: int) -> None:
        self._path = path
        self._limit_bytes = limit_bytes
        self._received = bytearray()
        self._body_at: int | None = None
        self._length: int | None = None
        self._chunked = False
        self._ended = False

    @property
    def whole(self) -> bool:
        """Whether nothing more has to be read."""
        if self._ended:
            return True
        if self._body_at is None or self._length is None:
            return False
        return len(self._received) - self._body_at >= self._length

    def take(self, more: bytes) -> None:
        """Add what was received; nothing is the end of the connection.

        Raises:
            Unreadable: Another status than 200, no HTTP, or more than there may be.
        """
        self._ended = not more
        self._received += more
        if self._body_at is None:
            self._look_for_head()
        else:
            self._check_length(len(self._received) - self._body_at)

    def body(self) -> bytes:
        """The body of a whole answer.

        Raises:
            Unreadable: It ended too early.
        """
        if self._body_at is None:
            raise self._broken("it has no head")
        if self._chunked:
            return self._joined_chunks()
        if self._length is None:
            return bytes(self._received[self._body_at :])
        found = bytes(self._received[self._body_at : self._body_at + self._length])
        if len(found) < self._length:
            raise self._broken(f"{len(found)} of {self._length} bytes")
        return found

    def _look_for_head(self) -> None:
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            if len(self._received) > MAX_HEAD_BYTES:
                raise self._broken("its head has no end")
            return
        self._body_at = end + 4
        self._read_head(bytes(self._received[:end]).decode("latin-1"))
        self._check_length(max(self._length or 0, len(self._received) - self._body_at))

    def _read_head(self, head: str) -> None:
        first, *lines = head.split("\r\n")
        version, _, status = first.partition(" ")
        if not version.startswith("HTTP/1."):
            raise self._broken("it is no HTTP/1.1")
        if not status.startswith("200"):
            raise Unreadable(f"answers {self._path} with status {status[:3]}")
        for line in lines:
            name, _, value = line.partition(":")
            match name.strip().lower():
                case "content-length":
                    self._length = self._number(value.strip(), 10)
                case "transfer-encoding":
                    self._chunked = value.strip().lower() == "chunked"
        if self._chunked:
            self._length = None

    def _check_length(self, length: int) -> None:
        # Of chunks their lines count too: whoever sends them a byte at a time has no more to say for it.
        if length > self._limit_bytes:
            raise Unreadable(f"answers {self._path} with more than {self._limit_bytes} bytes")

    def _joined_chunks(self) -> bytes:
        found, at = bytearray(), self._body_at or 0
        while True:
            end = self._received.find(b"\r\n", at, at + _LONGEST_CHUNK_LINE)
            if end < 0:
                raise self._broken("a chunk is missing")
            length = self._number(self._received[at:end].partition(b";")[0].strip().decode("latin-1"), 16)
            if length == 0:
                return bytes(found)
            at = end + 2 + length + 2
            if at > len(self._received):
                raise self._broken("a chunk is cut")
            found += self._received[end + 2 : at - 2]

    def _number(self, word: str, base: int) -> int:
        # int() takes signs and underscores too.
        if not word.isalnum() or not word.isascii() or len(word) > 18:
            raise self._broken(f"it has the length {word[:20]!r}")
        try:
            return int(word, base)
        except ValueError:
            raise self._broken(f"it has the length {word!r}") from None

    def _broken(self, why: str) -> Unreadable:
        return Unreadable(f"breaks off its answer to {self._path}: {why}")
