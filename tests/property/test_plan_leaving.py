"""Who leaves and who comes, applied to a model of Kubernetes: drains, gates, pauses, cordoned and lost nodes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglpool.api import names
from sglpool.plan import DeleteObject, Drained, Leave, MarkPod, Scale
from sglpool.plan.gate import rollout_hold
from support.model_world import GATE, World

BAD_LUCK = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["restart", "lose", "wedge"]), st.integers(0, 4)))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 5), st.integers(0, 5), st.lists(st.integers(0, 9), max_size=5), st.booleans(), st.booleans())
def test_a_smaller_pool_ends_no_replica_before_it_is_idle_or_its_time_is_up(before, after, patience, readable, routed):
    """The model asserts it; here is that it does end."""
    world = World(router={"enabled": routed})
    world.edit(replicas=before)
    world.settle()
    for pod, ticks in zip(world.pods(), patience, strict=False):
        world.cluster.work(pod, patience=ticks)
    world.cluster.readable = readable
    world.edit(replicas=after)
    first = world.plan()
    assert not [s for s in first.steps if isinstance(s, Scale) and s.replicas < before]
    assert {s.name for s in first.steps if isinstance(s, MarkPod)} == {f"kimi-b200-{n}" for n in range(after, before)}
    world.settle()
    world.assert_reached()


def test_load_that_returns_cancels_a_drain():
    world = World()
    world.settle()
    for pod in world.pods():
        world.cluster.work(pod, patience=9)
    running = {p.uid for p in world.pods()}
    world.edit(replicas=1)
    world.round()
    assert [p.name for p in world.pods() if p.draining] == ["kimi-b200-1", "kimi-b200-2"]
    world.edit(replicas=2)
    world.round()
    assert [p.name for p in world.pods() if p.draining] == ["kimi-b200-2"]
    world.edit(replicas=3)
    world.settle()
    assert {p.uid for p in world.pods()} == running
    assert not any(p.draining for p in world.pods())


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(0, 6), st.lists(st.integers(0, 9), max_size=6), st.sets(st.integers(0, 12)))
def test_an_operator_that_starts_anew_goes_on_with_what_the_autoscaler_wanted(before, wanted, patience, restarts):
    """It has decided nothing yet, so the size stands on the marks alone, and so do the deadlines."""
    world = World()
    world.edit(replicas=None, autoscaling={"minReplicas": 1, "maxReplicas": 9})
    for _ in range(8):
        world.round(wanted={"B200": before})
    for pod, ticks in zip(world.pods(), patience, strict=False):
        world.cluster.work(pod, patience=ticks)
    after = max(min(wanted, before), 1)
    world.round(wanted={"B200": after})
    deadlines: dict[str, str] = {}
    for number in range(20):
        plan = world.round(**({} if number in restarts else {"wanted": {"B200": after}}))
        assert plan.desired == {"B200": after}
        assert not [s for s in plan.steps if isinstance(s, MarkPod)], "it was marked, and stays so"
        now = {p.uid: p.annotations[names.ANNOTATION_DRAIN_DEADLINE] for p in world.pods() if p.draining}
        assert all(deadlines.setdefault(uid, text) == text for uid, text in now.items())
    assert len(world.pods()) == after


def test_a_lowered_size_says_what_went_with_it():
    world = World()
    world.settle()
    world.cluster.work(world.pods()[2], patience=99)
    world.edit(replicas=1)
    lowered: list[Scale] = []
    while world.cluster.statefulsets["kimi-b200"].replicas > 1:
        lowered += [s for s in world.round().steps if isinstance(s, Scale)]
    [scale] = lowered
    assert scale.drained == Drained(
        pods=("kimi-b200-1", "kimi-b200-2"), conversations=3, warm_tokens=300_000, requests=1, unread=0
    )


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6), st.integers(1, 3), BAD_LUCK, st.booleans(), st.integers(0, 3))
def test_a_revision_that_fails_its_gate_reaches_one_replica_no_user_and_goes_back(replicas, most, luck, drains, more):
    world = World(rollout={"maxUnavailable": most, "gate": GATE})
    world.edit(replicas=replicas)
    world.cluster.drains = drains
    world.settle()
    [old] = {p.revision for p in world.pods()}
    world.edit(engine={"image": "example/fails:1"}, replicas=replicas + more)

    def look() -> None:
        new = [p for p in world.pods() if p.revision != old]
        assert not [p for p in new if p.serves and p.name in marked], "it has traffic"
        assert len([p for p in new if p.ordinal < replicas]) <= 1

    for ordinal, what, rounds in [*luck, (0, None, 25)]:
        for _ in range(rounds):
            marked = {p.name for p in world.pods() if p.ready}
            world.round()
            look()
        pod = world.cluster.pods.get(f"kimi-b200-{ordinal}")
        if what and what != "wedge" and pod and pod.ready and not pod.terminating:
            getattr(world.cluster, what)(pod)
    assert {p.revision for p in world.pods()} == {old}
    assert all(p.serves for p in world.pods())
    hold = rollout_hold(world.pool, world.cluster.observe())
    assert hold is not None
    assert hold.reason == "GateFailed"
    world.edit(engine={"image": "example/good:2"})
    world.settle()
    world.assert_reached()


def test_a_pool_whose_first_revision_fails_its_gate_gets_no_traffic_until_one_passes():
    world = World(rollout={"gate": GATE}, engine={"image": "example/fails:1"})
    for _ in range(10):
        world.round()
    assert [p.ready for p in world.pods()] == [True] * 3
    assert not any(p.serves for p in world.pods())
    world.edit(engine={"image": "example/good:1"})
    world.settle()
    world.assert_reached()


def test_a_gate_that_comes_late_takes_no_traffic_from_what_serves():
    world = World()
    world.settle()
    world.edit(rollout={"gate": GATE})
    world.settle()
    assert all(p.serves for p in world.pods())
    assert not world.cluster.jobs


def test_a_failed_gate_is_tried_again_when_the_user_says_so():
    world = World(rollout={"gate": GATE})
    world.settle()
    world.edit(engine={"image": "example/fails:1"})
    tries: list[str] = []

    def run() -> None:
        for _ in range(12):
            tries.extend(j["metadata"]["uid"] for j in world.cluster.jobs.values())
            world.round()

    run()
    assert len(set(tries)) == 1
    world.say("resume")
    run()
    assert len(set(tries)) == 2
    world.say("resume-2")
    run()
    assert len(set(tries)) == 3
    world.cluster.jobs.clear()
    run()
    assert len(set(tries)) == 4


def test_a_cordoned_node_is_emptied_and_its_replicas_come_back_elsewhere():
    world = World()
    world.edit(replicas=4)
    world.settle()
    for pod in world.pods():
        world.cluster.work(pod, patience=2)
    [node] = [n for n in world.cluster.nodes.values() if n.name == "B200-0"]
    world.cluster.cordon(node)
    fewest = 4
    for _ in range(30):
        world.round()
        fewest = min(fewest, world.cluster.ready())
    assert fewest == 3
    assert not [p for p in world.pods() if p.node == node.name]
    world.assert_reached()


def test_the_last_replica_stays_on_a_cordoned_node():
    world = World()
    world.edit(replicas=1)
    world.settle()
    world.cluster.cordon(world.cluster.nodes["B200-0"])
    assert world.round().steps == ()


@pytest.mark.parametrize(("taken", "rounds"), [(False, 3), (True, 1)])
def test_what_a_lost_node_took_along_comes_back_elsewhere(taken, rounds):
    world = World()
    world.edit(replicas=4)
    world.settle()
    node = world.cluster.nodes["B200-0"]
    lost = {p.name for p in world.pods() if p.node == node.name}
    world.cluster.lose_node(node)
    if taken:
        world.cluster.lose_node(node)
    deleted: set[str] = set()
    for _ in range(rounds):
        deleted |= {s.name for s in world.round().steps if isinstance(s, DeleteObject)}
    assert deleted == lost
    world.settle()
    world.assert_reached()


def test_a_node_that_is_back_within_a_minute_loses_nothing():
    world = World()
    world.settle()
    before = {p.uid for p in world.pods()}
    node = world.cluster.nodes["B200-0"]
    world.cluster.lose_node(node)
    assert not [s for s in world.plan().steps if isinstance(s, DeleteObject)]
    world.cluster.repair(node)
    world.settle()
    assert {p.uid for p in world.pods()} == before


def test_a_node_that_lost_a_gpu_gives_up_one_replica():
    world = World()
    world.edit(replicas=4)
    world.settle()
    node = world.cluster.nodes["B200-0"]
    first, second = (p for p in world.pods() if p.node == node.name)
    world.cluster.lose_a_gpu(node)
    assert not [s for s in world.round().steps if isinstance(s, MarkPod)], "the device plugin may only be late"
    world.round()
    world.settle()
    assert [p.name for p in world.pods() if p.node == node.name] == [first.name]
    assert second.uid not in {p.uid for p in world.pods()}
    world.assert_reached()


def test_an_unhealthy_replica_is_replaced_also_when_it_is_the_only_one():
    for replicas in (1, 3):
        world = World()
        world.edit(replicas=replicas)
        world.settle()
        sick = world.pods()[-1]
        world.cluster.work(sick, patience=1)
        reasons = []
        for _ in range(20):
            plan = world.plan(unhealthy={sick.uid: Leave(reason="its accept length is 1.02")})
            reasons += [s.reason for s in plan.steps if isinstance(s, DeleteObject | MarkPod)]
            world.cluster.carry_out(world.pool, plan)
            world.cluster.tick()
        assert sick.uid not in {p.uid for p in world.pods()}
        assert len(reasons) == (1 if replicas == 1 else 2)
        assert set(reasons) == {"its accept length is 1.02"}
        world.assert_reached()


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), st.integers(1, 3), st.booleans(), st.integers(0, 12))
def test_an_aborted_roll_out_returns_and_a_paused_one_stays(replicas, most, gated, rounds):
    world = World(rollout={"maxUnavailable": most, **({"gate": GATE} if gated else {})})
    world.edit(replicas=replicas)
    world.settle()
    [old] = {p.revision for p in world.pods()}
    world.edit(engine={"image": "example/good:2"})
    for _ in range(rounds):
        world.round()
    world.say("pause")
    for _ in range(8):
        world.round()
    finished = world.cluster.statefulsets["kimi-b200"].current_revision != old
    paused = {p.uid for p in world.pods()}
    for _ in range(8):
        world.round()
    assert {p.uid for p in world.pods()} == paused
    world.say("abort")
    for _ in range(40):
        world.round()
    assert {p.revision for p in world.pods()} == {old} or finished
    assert all(p.serves for p in world.pods())
    world.say("")
    world.settle()
    world.assert_reached()
