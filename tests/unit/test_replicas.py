"""How replicas are spread over GPU types."""

from hypothesis import given
from hypothesis import strategies as st

from sglpool.api.pool import GPU
from sglpool.plan.replicas import desired_replicas, split_in_order
from support import pools


@st.composite
def gpu_lists(draw):
    types = draw(st.lists(st.sampled_from(["B200", "B300", "H200", "X100"]), unique=True, min_size=1))
    gpus = []
    for gpu_type in types:
        least = draw(st.integers(0, 5))
        gpus.append(GPU(type=gpu_type, min_replicas=least, max_replicas=draw(st.none() | st.integers(least, 12))))
    return gpus


def most(gpus):
    return sum(1_000 if g.max_replicas is None else g.max_replicas for g in gpus)


@given(gpu_lists(), st.integers(0, 60))
def test_a_split_sums_up_within_the_bounds(gpus, total):
    split = split_in_order(total, gpus)
    assert list(split) == [g.type for g in gpus]
    assert sum(split.values()) == min(total, most(gpus))
    assert all(0 <= split[g.type] <= (g.max_replicas if g.max_replicas is not None else total) for g in gpus)
    if total >= sum(g.min_replicas for g in gpus):
        assert all(split[g.type] >= g.min_replicas for g in gpus)


@given(gpu_lists(), st.integers(0, 60))
def test_a_type_beyond_its_minimum_means_that_the_preferred_ones_are_full(gpus, total):
    split = split_in_order(total, gpus)
    for index, gpu in enumerate(gpus):
        if split[gpu.type] > gpu.min_replicas:
            assert all(split[before.type] == before.max_replicas for before in gpus[:index])


@given(gpu_lists(), st.integers(0, 60))
def test_one_more_replica_moves_none_of_the_others(gpus, total):
    fewer, more = split_in_order(total, gpus), split_in_order(total + 1, gpus)
    assert all(more[t] >= fewer[t] for t in fewer)


def spec(**changes):
    return pools.pool(changes).spec


def autoscaled(least, most_, gpus):
    return spec(replicas=None, autoscaling={"minReplicas": least, "maxReplicas": most_}, gpus=gpus)


@given(st.integers(1, 8), st.integers(0, 8), st.integers(0, 12), st.integers(0, 12), st.none() | st.integers(2, 6))
def test_without_load_figures_the_size_is_held_within_the_bounds(least, more, b200, b300, bound):
    gpus = [{"type": "B200", **({"maxReplicas": bound} if bound else {})}, {"type": "B300", "minReplicas": 1}]
    held = desired_replicas(autoscaled(least, least + more, gpus), {"B200": b200, "B300": b300})
    assert least <= sum(held.values()) <= least + more
    assert held["B300"] >= 1
    assert bound is None or held["B200"] <= bound
    if least <= b200 + b300 <= least + more and b300 >= 1 and (bound is None or b200 <= bound):
        assert held == {"B200": b200, "B300": b300}


def test_growth_prefers_the_first_type_and_shrinking_the_last():
    gpus = [{"type": "B200", "maxReplicas": 2}, {"type": "B300"}]
    assert desired_replicas(autoscaled(3, 9, gpus), {}) == {"B200": 2, "B300": 1}
    assert desired_replicas(autoscaled(1, 3, gpus), {"B200": 2, "B300": 4}) == {"B200": 2, "B300": 1}


@given(st.integers(0, 12), st.integers(0, 8), st.integers(0, 8))
def test_a_spec_that_cannot_be_carried_out_moves_no_replica_between_types(wanted, b200, b300):
    current = {"B200": b200, "B300": b300}
    frozen = desired_replicas(spec(replicas=wanted, gpus=[{"type": "B300"}, {"type": "B200"}]), current, frozen=True)
    assert sum(frozen.values()) == wanted
    grows = wanted >= b200 + b300
    assert all((frozen[t] >= current[t]) if grows else (frozen[t] <= current[t]) for t in current)


def test_a_type_that_never_ran_gets_nothing_while_the_spec_cannot_be_carried_out():
    gpus = [{"type": "X999"}, {"type": "B200"}]
    assert desired_replicas(spec(replicas=3, gpus=gpus), {"B200": 2}, frozen=True) == {"X999": 0, "B200": 3}
    # What left the spec but still runs counts: it would otherwise be replaced beside itself.
    assert desired_replicas(spec(replicas=3, gpus=gpus), {"B200": 1, "B300": 2}, frozen=True) == {"X999": 0, "B200": 1}
    # Before anything exists the wish is shown as it is.
    assert desired_replicas(spec(replicas=3, gpus=gpus), {}, frozen=True) == {"X999": 3, "B200": 0}
