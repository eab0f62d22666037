"""The Lua that runs inside Envoy: files of this folder behind the few values that they need.

`key.lua` gives a request its conversation's key, `scan.lua` reads from a response why it ended and what it cost, and
`remember.lua`, which both use, keeps what the picker said for as long as it is away.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

from sglpool.render.envoy.shape import BUFFER_BYTES
from sglpool.routing import pickerconfig as names
from sglpool.routing.keys import KEY_HEADERS

MOST_REMEMBERED = 20_000
"""Conversations of one generation of `remember.lua`: some megabytes for each worker."""


_WITHOUT_JIT = "jit.off(true, true)\n"
"""Every request runs a few short functions that mostly call C, in coroutines of its own: compiling them is tried again
and again, and the interpreter takes a twelfth less of a small request. `digest`, a loop of its own, is excepted."""

_NAMES = {
    "SESSION": names.HEADER_KEY_SESSION,
    "CONVERSATION": names.HEADER_KEY_CONVERSATION,
    "DESTINATION": names.HEADER_DESTINATION,
    "MEMO": names.HEADER_MEMO,
    "NAMESPACE": names.METADATA_NAMESPACE,
    "ANSWER": names.METADATA_ANSWER,
}


@cache
def source() -> str:
    """The script of the listener's one Lua filter."""
    pairs = ", ".join(_table(*(name for name in pair if name is not None)) for pair in KEY_HEADERS)
    head = "".join(f"local {variable} = {_quoted(name)}\n" for variable, name in _NAMES.items())
    head += f"local KEY_HEADERS = {{{pairs}}}\nlocal ANSWER_FIELDS = {_table(*names.ANSWER_FIELDS)}\n"
    head += f"local BUFFER_BYTES, MOST = {BUFFER_BYTES}, {MOST_REMEMBERED}\n"
    return (
        _WITHOUT_JIT
        + head
        + _text("remember.lua")
        + "".join(f"do\n{_text(name)}end\n" for name in ("key.lua", "scan.lua"))
    )


def _table(*words: str) -> str:
    return "{" + ", ".join(_quoted(word) for word in words) + "}"


def _quoted(name: str) -> str:
    if not name.replace("-", "").replace("_", "").isalnum():
        raise ValueError(f"{name!r} is no name of a header or a field")
    return f'"{name}"'


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
