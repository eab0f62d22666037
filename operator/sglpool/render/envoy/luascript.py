"""The Lua that runs inside Envoy: two files of this folder behind the few values that they need.

`key.lua` gives a request its conversation's key, `scan.lua` reads from a response why it ended and what it cost.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

from sglpool.render.envoy.shape import BUFFER_BYTES
from sglpool.routing.keys import KEY_HEADERS


@cache
def source() -> str:
    """The whole script."""
    pairs = ", ".join("{" + ", ".join(_quoted(name) for name in pair if name is not None) + "}" for pair in KEY_HEADERS)
    head = f"local KEY_HEADERS = {{{pairs}}}\nlocal BUFFER_BYTES = {BUFFER_BYTES}\n"
    return head + "".join(f"do\n{_text(name)}end\n" for name in ("key.lua", "scan.lua"))


def _quoted(name: str) -> str:
    if not name.replace("-", "").isalnum():
        raise ValueError(f"{name!r} is no name of a header")
    return f'"{name}"'


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
