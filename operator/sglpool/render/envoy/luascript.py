"""The Lua that runs inside Envoy: files of this folder behind the few values that they need.

`key.lua` gives a request its conversation's key, `scan.lua` reads from a response why it ended and what it cost,
`remember.lua`, behind the picker, keeps what it said for as long as it is away.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

from sglpool.render.envoy.shape import BUFFER_BYTES
from sglpool.routing.keys import KEY_HEADERS
from sglpool.routing.pickerconfig import HEADER_DESTINATION, HEADER_KEY_CONVERSATION, HEADER_KEY_SESSION

MOST_REMEMBERED = 20_000
"""Conversations of one generation of `remember.lua`: some megabytes for each worker."""


@cache
def source() -> str:
    """The script in front of the picker."""
    pairs = ", ".join("{" + ", ".join(_quoted(name) for name in pair if name is not None) + "}" for pair in KEY_HEADERS)
    head = f"local KEY_HEADERS = {{{pairs}}}\nlocal BUFFER_BYTES = {BUFFER_BYTES}\n"
    return head + "".join(f"do\n{_text(name)}end\n" for name in ("key.lua", "scan.lua"))


@cache
def remembering() -> str:
    """The script behind the picker."""
    names = {"SESSION": HEADER_KEY_SESSION, "CONVERSATION": HEADER_KEY_CONVERSATION, "DESTINATION": HEADER_DESTINATION}
    head = "".join(f"local {variable} = {_quoted(name)}\n" for variable, name in names.items())
    return f"{head}local MOST = {MOST_REMEMBERED}\n{_text('remember.lua')}"


def _quoted(name: str) -> str:
    if not name.replace("-", "").isalnum():
        raise ValueError(f"{name!r} is no name of a header")
    return f'"{name}"'


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
