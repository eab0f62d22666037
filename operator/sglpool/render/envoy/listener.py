"""The listener of the serving API, as data of a file that Envoy watches. Not here: the bootstrap around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglpool.render.envoy.shape import RouterShape


def listener(shape: RouterShape, api_keys: Mapping[str, str]) -> dict[str, Any]:
    """Content of the LDS file.

    Args:
        shape: the pool's Envoy.
        api_keys: client name to key; used only when the shape wants keys.
    """
    raise NotImplementedError
