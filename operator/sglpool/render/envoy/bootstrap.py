"""Envoy's bootstrap, and the files that stand beside it. Not here: the listener, which the picker writes."""

from __future__ import annotations

from sglpool.render.envoy.shape import RouterShape


def bootstrap(shape: RouterShape) -> str:
    """The bootstrap as YAML."""
    raise NotImplementedError


def files(shape: RouterShape) -> dict[str, str]:
    """Every file of the router's ConfigMap that Envoy reads, by its name in `shape.config_dir`."""
    return {"envoy.yaml": bootstrap(shape)}
