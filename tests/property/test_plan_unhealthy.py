"""Replicas that do badly, applied to a model of Kubernetes: emptied, replaced, and never more away than may be."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sglpool.plan import DeleteObject, Leave, MarkPod
from support.model_world import ROUNDS, World


def replace_unhealthy(world: World, uids: set[str]) -> list[DeleteObject]:
    """Bring the world forward until the replicas of these pods were replaced; returns what was deleted."""
    deleted: list[DeleteObject] = []
    for _ in range(ROUNDS):
        ill = {uid: Leave(reason="its accept length was 1.02") for uid in uids if uid in {p.uid for p in world.pods()}}
        plan = world.plan(unhealthy=ill)
        deleted += [step for step in plan.steps if isinstance(step, DeleteObject)]
        world.cluster.carry_out(world.pool, plan)
        world.cluster.tick()
        if not ill and not world.plan().steps and world.settled():
            return deleted
    raise AssertionError(f"not replaced after {ROUNDS} rounds: {world.plan().steps} {world.cluster.pods}")


@settings(max_examples=40, deadline=None)
@given(
    st.integers(2, 6),
    st.integers(1, 3),
    st.sets(st.integers(0, 5), min_size=1),
    st.lists(st.integers(0, 9), max_size=6),
    st.booleans(),
)
def test_unhealthy_replicas_are_emptied_and_replaced_within_the_bound(replicas, most, ill, patience, routed):
    """However many are named: the model asserts that no more than `maxUnavailable` are away, and that none is cut."""
    world = World(router={"enabled": routed}, rollout={"maxUnavailable": most})
    world.edit(replicas=replicas)
    world.settle()
    for pod, ticks in zip(world.pods(), patience, strict=False):
        world.cluster.work(pod, patience=ticks)
    before = {pod.name: pod.uid for pod in world.pods()}
    named = {name for name in before if int(name.rpartition("-")[2]) in ill}
    deleted = replace_unhealthy(world, {before[name] for name in named})
    after = {pod.name: pod.uid for pod in world.pods()}
    assert {name for name in before if after[name] != before[name]} == named
    assert {step.name for step in deleted} == named
    assert all(step.reason == "its accept length was 1.02" for step in deleted)
    world.assert_reached()


def test_one_unhealthy_replica_leaves_the_others_unmarked():
    world = World()
    world.settle()
    for pod in world.pods():
        world.cluster.work(pod, patience=9)
    ill = world.pods()[1]
    steps = world.plan(unhealthy={ill.uid: Leave(reason="why")}).steps
    assert [(type(step), step.name, step.reason) for step in steps if isinstance(step, MarkPod)] == [
        (MarkPod, ill.name, "why")
    ]
    assert not [step for step in steps if isinstance(step, DeleteObject)], "conversations leave first"


def test_a_verdict_that_does_not_hold_any_more_cancels_the_drain():
    world = World()
    world.settle()
    for pod in world.pods():
        world.cluster.work(pod, patience=99)
    ill, before = world.pods()[1], {pod.uid for pod in world.pods()}
    world.cluster.carry_out(world.pool, world.plan(unhealthy={ill.uid: Leave(reason="why")}))
    world.cluster.tick()
    assert [pod.name for pod in world.pods() if pod.draining] == [ill.name]
    world.settle()
    assert {pod.uid for pod in world.pods()} == before
    assert not any(pod.draining for pod in world.pods())


def test_an_unhealthy_replica_waits_while_another_one_is_away():
    world = World()
    world.settle()
    world.cluster.restart(world.pods()[0])
    ill = world.pods()[2]
    assert world.plan(unhealthy={ill.uid: Leave(reason="why")}).steps == ()


def test_the_only_replica_is_replaced_without_a_wait_that_would_help_nobody():
    world = World()
    world.edit(replicas=1)
    world.settle()
    [ill] = world.pods()
    world.cluster.work(ill, patience=99)
    assert [(type(s), s.name) for s in world.plan(unhealthy={ill.uid: Leave(reason="why")}).steps] == [
        (DeleteObject, ill.name)
    ]


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 5), st.integers(0, 4), st.integers(0, 6))
def test_an_unhealthy_replica_in_the_middle_of_a_roll_out_holds_nothing_up(replicas, ordinal, rounds):
    world = World()
    world.edit(replicas=replicas)
    world.settle()
    world.edit(engine={"image": "example/good:2"})
    for _ in range(rounds):
        world.round()
    replace_unhealthy(world, {pod.uid for pod in world.pods() if pod.ordinal == ordinal})
    world.assert_reached()


def test_a_parked_or_unknown_pod_is_nobodys():
    world = World()
    world.edit(replicas=0)
    world.settle()
    assert world.plan(unhealthy={"somebody": Leave(reason="why")}).steps == ()
