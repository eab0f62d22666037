"""What a pool's router is, byte for byte: the samples that say most about it, against committed files.

Envoy's own files are left out and what is named by its content is masked, so that a change of Envoy's configuration
changes no file here. The hash of the user's choice is in: one that changes would replace everybody's routers.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sglpool import render
from sglpool.api import names
from sglpool.api.validate import load_pool
from sglpool.catalog import load_catalog
from sglpool.render.router_pod import PICKER_IMAGE
from sglpool.sizing.pools import size_pool
from support.golden import as_yaml, check_committed

HERE = Path(__file__).parent
SAMPLES = HERE.parents[1] / "manifests" / "samples"
RENDERED = HERE / "rendered-routers"
POOLS = {
    path.stem: path
    for path in (
        SAMPLES / "kimi-k2.6-coder.yaml",
        SAMPLES / "everything.yaml",
        SAMPLES / "kimi-k2.6-autoscaled.yaml",
        HERE / "pools" / "longest-names.yaml",
    )
}


def rendered(path: Path) -> str:
    pool = load_pool(yaml.safe_load(path.read_text(encoding="utf-8")))
    sized = size_pool(pool, load_catalog(), node_memory_bytes={}, hicache_bytes={})
    configmap = render.router_configmap(pool, sized)
    name = configmap["metadata"]["name"]
    configmap["data"] |= dict.fromkeys(
        configmap["data"].keys() - {"picker.json"}, "(as Envoy's contract tests have it)"
    )
    text = as_yaml([configmap, *render.router_children(pool, sized)])
    return text.replace(name, names.router_configmap_name(pool.name, "masked")).replace(PICKER_IMAGE, "(this version)")


@pytest.mark.parametrize("name", POOLS)
def test_a_router_is_rendered_as_before(name: str, regenerate: bool) -> None:
    check_committed(RENDERED / f"{name}.yaml", rendered(POOLS[name]), regenerate=regenerate)


def test_every_golden_file_has_its_pool() -> None:
    assert {path.stem for path in RENDERED.glob("*.yaml")} == POOLS.keys()
