"""Any pool within the documented bounds is accepted, and equal amounts are equal however they are written."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from sglpool.api.pool import parse_pool
from sglpool.api.quantity import format_duration, parse_bytes, parse_duration_s
from sglpool.api.validate import InvalidPool, Problem, load_pool
from support import pools

Json = dict[str, Any]

BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi")
DECIMAL = ("", "k", "M", "G", "T", "P")
COMMITS = st.text("0123456789abcdef", min_size=40, max_size=40)
NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", fullmatch=True)
TYPES = st.from_regex(r"[A-Z][A-Z0-9]{1,10}", fullmatch=True)


@st.composite
def gpu_entries(draw: st.DrawFn) -> list[Json]:
    entries = []
    for gpu_type in draw(st.lists(TYPES, min_size=1, max_size=4, unique=True)):
        least = draw(st.integers(0, 1000))
        entry: Json = {"type": gpu_type, "minReplicas": least}
        if draw(st.booleans()):
            entry["maxReplicas"] = draw(st.integers(least, 1000))
        if draw(st.booleans()):
            entry["memFractionStaticPercent"] = draw(st.integers(40, 97))
        entries.append(entry)
    return entries


@st.composite
def sizes(draw: st.DrawFn, gpus: list[Json]) -> Json:
    bounds = [gpu.get("maxReplicas", 1000) for gpu in gpus]
    floor, ceiling = sum(gpu["minReplicas"] for gpu in gpus), min(1000, sum(bounds))
    if draw(st.booleans()) and floor <= 1000 and ceiling >= 1:
        least = draw(st.integers(1, ceiling))
        most = draw(st.integers(max(least, floor), 1000))
        return {"replicas": None, "autoscaling": {"minReplicas": least, "maxReplicas": most}}
    return {"replicas": draw(st.integers(0, min(1000, sum(bounds))))}


@st.composite
def manifests(draw: st.DrawFn) -> Json:
    gpus = draw(gpu_entries())
    source = {"huggingFace": {"repo": "owner/model", "revision": draw(COMMITS)}}
    hicache = draw(st.sampled_from(["Auto", "1G", "480G", "512Gi", 10**9]))
    changes = {
        "model": {"source": source, "contextLength": draw(st.integers(1024, 16_777_216))},
        "tensorParallelSize": draw(st.sampled_from([1, 2, 4, 8])),
        "gpus": gpus,
        "kvCache": {"hiCache": {"size": hicache}},
        "load": {"tokensPerRequest": draw(st.integers(1, 16_777_216))},
        "engine": {"chunkedPrefillSize": 64 * draw(st.integers(1, 16_384))},
        **draw(sizes(gpus)),
    }
    return pools.manifest(changes, metadata={"name": draw(NAMES)})


@given(manifests())
def test_every_pool_within_the_bounds_is_accepted(manifest: Json) -> None:
    pool = load_pool(manifest)

    assert pool.spec == parse_pool(manifest).spec
    assert load_pool(yaml.safe_load(yaml.safe_dump(manifest))).spec == pool.spec


@given(manifests())
def test_what_was_parsed_is_what_was_written(manifest: Json) -> None:
    written = load_pool(manifest).spec.model_dump(mode="json", by_alias=True, exclude_none=True)

    assert written["gpus"] == [{**{"minReplicas": 0}, **gpu} for gpu in manifest["spec"]["gpus"]]
    assert written["tensorParallelSize"] == manifest["spec"]["tensorParallelSize"]
    assert written["model"]["source"]["huggingFace"] == manifest["spec"]["model"]["source"]["huggingFace"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=10,
)
PLACES = st.sampled_from(
    [*sorted(pools.manifest()["spec"]), "engine", "router", "template", "rollout", "load", "autoscaling"]
)


@given(JSON, PLACES)
def test_nonsense_at_any_place_is_refused_in_words_and_never_crashes(nonsense: object, place: str) -> None:
    manifest = pools.manifest()
    manifest["spec"][place] = nonsense
    try:
        load_pool(manifest)
        problems: tuple[Problem, ...] = ()
    except InvalidPool as error:
        problems = error.problems
    assert all(problem.path.startswith("spec") and len(problem.message) > 5 for problem in problems)


@given(st.integers(1, 4096), st.integers(0, 4))
def test_a_binary_unit_is_1024_of_the_one_below(number: int, unit: int) -> None:
    assert parse_bytes(f"{number}{BINARY[unit + 1]}") == parse_bytes(f"{number * 1024}{BINARY[unit]}")


@given(st.integers(1, 4096), st.integers(0, 4))
def test_a_decimal_unit_is_1000_of_the_one_below(number: int, unit: int) -> None:
    assert parse_bytes(f"{number}{DECIMAL[unit + 1]}") == parse_bytes(f"{number * 1000}{DECIMAL[unit]}")
    assert parse_bytes(f"{number}.5{DECIMAL[unit + 1]}") == parse_bytes(f"{number * 1000 + 500}{DECIMAL[unit]}")


@given(st.integers(1, 10**9))
def test_bytes_are_the_same_as_number_and_as_text(number: int) -> None:
    assert parse_bytes(number) == parse_bytes(str(number)) == number


@given(st.integers(0, 999_999 * 3600))
def test_a_duration_survives_being_written(seconds: int) -> None:
    assert parse_duration_s(format_duration(seconds)) == seconds


@given(st.integers(0, 9999))
def test_a_duration_can_be_written_in_any_unit(number: int) -> None:
    assert parse_duration_s(f"{number}h") == parse_duration_s(f"{number * 60}m") == parse_duration_s(f"{number}h0m0s")
    assert parse_duration_s(f"{number}m") == parse_duration_s(f"{number * 60}s")
