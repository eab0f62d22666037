"""Whatever routers, engines and a Prometheus answer: it is believed as it is, or missing; nothing crashes on it."""

from __future__ import annotations

import contextlib
import copy
import json
import math
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sglpool.signals import PrometheusAt, ReplicaReading
from sglpool.signals.engines import parse_loads
from sglpool.signals.fields import Unreadable, parse_object
from sglpool.signals.prometheus import parse_series
from sglpool.signals.routers import RouterState, merge, parse_state
from support.signal_peers import endpoint, loads, replica, state, target

NOW_S = 1_800_000_000.0
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.just(10**400)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["a", "p", "ns", "r1", "NaN", "-1", 1_000_000, 0]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def paths(node: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [at, *(path for key, child in items for path in paths(child, (*at, key)))]


@st.composite
def spoiled(draw: st.DrawFn, good: Any) -> Any:
    """A good document with a few places replaced by anything, or by nothing."""
    document = copy.deepcopy(good)
    for _ in range(draw(st.integers(0, 3))):
        *parents, last = draw(st.sampled_from(paths(document)[1:] or [("x",)]))
        node = document
        for key in parents:
            node = node[key]
        if draw(st.booleans()) or not isinstance(node, dict):
            node[last] = draw(ANYTHING)
        else:
            node.pop(last, None)
    return document


def check(one: ReplicaReading) -> None:
    assert min(one.queued, one.in_flight) >= 0
    assert 0 <= one.kv_used_tokens <= one.kv_total_tokens
    assert one.kv_total_tokens > 0
    assert 0 <= one.age_s < math.inf


@given(st.binary(max_size=64) | ANYTHING.map(lambda value: json.dumps(value).encode()))
def test_bytes_are_an_object_of_json_or_unreadable(body: bytes) -> None:
    with contextlib.suppress(Unreadable):
        assert isinstance(parse_object(body), dict)


@given(spoiled(state(replica("a", in_flight=2), replica("b"))))
def test_a_routers_state_is_believed_or_unreadable(document: dict[str, Any]) -> None:
    try:
        found = parse_state(document, pool="p", router="r1", known=("a", "b"))
    except Unreadable:
        return
    assert isinstance(found, RouterState)
    reading = merge({endpoint("r1"): found}, target("a", "b", routers=("r1",)))
    assert reading.in_flight == sum(one.in_flight for one in found.replicas.values())
    for one in reading.replicas.values():
        check(one)


@given(spoiled(loads(num_running_reqs=1, num_used_tokens=10)))
def test_an_engines_counts_are_believed_or_unreadable(document: dict[str, Any]) -> None:
    with contextlib.suppress(Unreadable):
        check(parse_loads(document))


METRIC = {"__name__": "sglang:num_running_reqs", "namespace": "ns", "pod": "a"}
SERIES = [
    {"metric": METRIC | {"__name__": f"sglang:{name}"}, "values": [[NOW_S - 5, value]]}
    for name, value in (
        ("num_running_reqs", "1"),
        ("num_queue_reqs", "0"),
        ("num_used_tokens", "10"),
        ("max_total_num_tokens", "1000"),
    )
]


@given(spoiled(SERIES))
def test_series_are_believed_or_missing(document: Any) -> None:
    series = [one for one in document if isinstance(one, dict)] if isinstance(document, list) else []
    of = replace(target(), engines=(endpoint("a"),))
    reading = parse_series(series, PrometheusAt(url="http://p"), of, now_s=NOW_S)
    assert len(reading.replicas) + len(reading.problems) == 1
    for one in reading.replicas.values():
        check(one)
