"""What a pool becomes, byte for byte: every sample and a set of edge cases against committed files.

Script texts are left out and everything named by their content is masked, so that a changed script changes no file
here. Spec hashes are in: one that changes would restart the models of everybody who upgrades.
"""

from pathlib import Path

import pytest
import yaml

from sglpool import render
from sglpool.api import names
from sglpool.api.validate import load_pool
from sglpool.catalog import load_catalog
from sglpool.render.scripts import CONFIG_NAME
from sglpool.sizing.pools import size_pool
from support.golden import as_yaml, check_committed

HERE = Path(__file__).parent
SAMPLES = HERE.parents[1] / "manifests" / "samples"
RENDERED = HERE / "rendered"
POOLS = {path.stem: path for path in sorted([*SAMPLES.glob("*.yaml"), *(HERE / "pools").glob("*.yaml")])}


def rendered(path: Path) -> str:
    """All manifests of a pool in the order of application, as YAML."""
    pool = load_pool(yaml.safe_load(path.read_text(encoding="utf-8")))
    manifests = list(render.shared_children(pool))
    masks = {}
    for sized in size_pool(pool, load_catalog(), node_memory_bytes={}, hicache_bytes={}):
        assert sized.feasible, sized.message
        configmap, statefulset = render.launch_configmap(pool, sized), render.statefulset(pool, sized)
        masks[configmap["metadata"]["name"]] = names.launch_configmap_name(pool.name, f"of-{sized.entry.type}")
        masks[statefulset["metadata"]["annotations"][names.ANNOTATION_RENDER_HASH]] = f"of-{sized.entry.type}"
        scripts = configmap["data"].keys() - {CONFIG_NAME}
        configmap["data"] |= dict.fromkeys(scripts, "(as in the package)")
        manifests += [configmap, statefulset]
    text = as_yaml(manifests)
    for value, mask in masks.items():
        text = text.replace(value, mask)
    return text


@pytest.mark.parametrize("name", POOLS)
def test_a_pool_is_rendered_as_before(name: str, regenerate: bool) -> None:
    check_committed(RENDERED / f"{name}.yaml", rendered(POOLS[name]), regenerate=regenerate)


def test_every_golden_file_has_its_pool() -> None:
    assert {path.stem for path in RENDERED.glob("*.yaml")} == POOLS.keys()


def test_names_of_samples_and_edge_cases_do_not_clash() -> None:
    stems = [path.stem for path in [*SAMPLES.glob("*.yaml"), *(HERE / "pools").glob("*.yaml")]]
    assert len(stems) == len(set(stems)) >= 10
