"""Plans applied to a model of Kubernetes: whatever users and bad luck do, the pool gets where its spec says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from sglpool.api import names
from sglpool.plan import ApplyTemplate, CreateStatefulSet, DeleteObject, MarkPod, RecreateStatefulSet, Scale
from support import pools
from support.model_world import B200, B300, FEASIBLE, GATE, INFEASIBLE, PLENTY, ROUNDS, World

GPU_LISTS = st.sampled_from(
    [[B200], [B300], [B200, B300], [B300, B200], [{**B200, "maxReplicas": 2}, B300], [B200, {**B300, "minReplicas": 1}]]
)
ROUTERS = st.sampled_from(
    [
        {"enabled": False},
        {"enabled": True},
        {"enabled": True, "replicas": 2, "sessionStore": {"managed": {}}},
        {"enabled": True, "bodyLimit": "1Mi"},
    ]
)


IMAGES = st.sampled_from(
    ["example/good:1", "example/good:2", "example/bad:1", "example/bad:2", "example/fails:1", "example/fails:2"]
)


class AnyHistory(RuleBasedStateMachine):
    """Users edit, pods fail, nodes come and go, the operator dies; the model asserts what must hold at every step."""

    @initialize(waits_for_all=st.booleans(), most=st.integers(1, 3), drains=st.booleans())
    def start(self, waits_for_all, most, drains):
        self.world = World(waits_for_all=waits_for_all, rollout={"maxUnavailable": most})
        self.world.cluster.drains = drains

    @rule(replicas=st.integers(0, 6))
    def scale(self, replicas):
        self.world.edit(replicas=replicas)

    @rule(image=IMAGES)
    def change_template(self, image):
        self.world.edit(engine={"image": image})

    @rule(gpus=GPU_LISTS)
    def change_types(self, gpus):
        self.world.edit(gpus=gpus)

    @rule(change=st.sampled_from([INFEASIBLE, FEASIBLE]))
    def change_fit(self, change):
        self.world.edit(**change)

    @rule(most=st.integers(1, 3))
    def change_pace(self, most):
        self.world.edit(rollout={"maxUnavailable": most})

    @rule(gate=st.sampled_from([None, GATE]))
    def change_gate(self, gate):
        self.world.edit(rollout={"gate": gate})

    @rule(word=st.sampled_from(["", "pause", "abort", "resume", "resume-2", "nonsense"]))
    def say(self, word):
        self.world.say(word)

    @rule(router=ROUTERS)
    def change_router(self, router):
        self.world.edit(router=router)

    @precondition(lambda self: self.world.cluster.deployments)
    @rule(data=st.data())
    def lose_a_deployment(self, data):
        name = data.draw(st.sampled_from(sorted(self.world.cluster.deployments)))
        del self.world.cluster.deployments[name]

    @rule(capacity=st.integers(0, 6), gpu_type=st.sampled_from(["B200", "B300"]))
    def change_capacity(self, capacity, gpu_type):
        self.world.cluster.capacity[gpu_type] = capacity

    @precondition(lambda self: any(not job["status"] for job in self.world.cluster.jobs.values()))
    @rule(data=st.data())
    def disrupt_a_test(self, data):
        jobs = self.world.cluster.jobs
        name = data.draw(st.sampled_from(sorted(name for name, job in jobs.items() if not job["status"])))
        jobs[name]["status"] = {"conditions": [{"type": "Failed", "status": "True", "reason": "PodFailurePolicy"}]}

    @precondition(lambda self: self.world.pods())
    @rule(data=st.data(), what=st.sampled_from(["restart", "wedge", "lose"]))
    def fail(self, data, what):
        pod = data.draw(st.sampled_from(self.world.pods()))
        getattr(self.world.cluster, what)(pod)

    @precondition(lambda self: self.world.cluster.nodes)
    @rule(data=st.data(), what=st.sampled_from(["cordon", "lose_node", "lose_a_gpu", "repair"]))
    def strike_a_node(self, data, what):
        nodes = self.world.cluster.nodes
        getattr(self.world.cluster, what)(nodes[data.draw(st.sampled_from(sorted(nodes)))])

    @precondition(lambda self: self.world.pods())
    @rule(data=st.data(), patience=st.integers(0, 20))
    def work(self, data, patience):
        self.world.cluster.work(data.draw(st.sampled_from(self.world.pods())), patience=patience)

    @rule(readable=st.booleans())
    def read(self, readable):
        self.world.cluster.readable = readable

    @precondition(lambda self: self.world.cluster.statefulsets)
    @rule(data=st.data(), what=st.sampled_from(["delete", "orphan"]))
    def remove_by_hand(self, data, what):
        name = data.draw(st.sampled_from(sorted(self.world.cluster.statefulsets)))
        getattr(self.world.cluster, what)(name)

    @rule(steps=st.integers(0, 3))
    def die_in_the_middle(self, steps):
        self.world.cluster.carry_out(self.world.pool, self.world.plan(), steps=steps)

    @rule(ticks=st.integers(1, 6))
    def only_kubernetes(self, ticks):
        for _ in range(ticks):
            self.world.cluster.tick()

    @rule(rounds=st.integers(1, 12))
    def operate(self, rounds):
        for _ in range(rounds):
            self.world.round()

    def teardown(self):
        self.world.cluster.capacity.update(PLENTY)
        for node in [*self.world.cluster.nodes.values()]:
            self.world.cluster.repair(node)
        self.world.say("")
        self.world.edit(engine={"image": "example/good:3"}, **FEASIBLE)
        self.world.settle()
        self.world.assert_reached()
        assert self.world.plan().steps == ()
        router = self.world.manifest["spec"]["router"]
        expected = {"kimi-router"} if router["enabled"] else set()
        expected |= {"kimi-valkey"} if "sessionStore" in router else set()
        assert self.world.cluster.deployments.keys() == expected
        left = {n for k, n in self.world.cluster.children if k != "ConfigMap" and names.is_router_child("kimi", k, n)}
        assert left - {"kimi-engine"} == expected


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


BAD_LUCK = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["restart", "lose", "wedge"]), st.integers(0, 4)))


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 6), st.integers(1, 3), st.booleans(), BAD_LUCK, st.booleans())
def test_a_bad_template_breaks_no_more_than_max_unavailable(replicas, most, waits_for_all, luck, revert):
    world = World(waits_for_all=waits_for_all, rollout={"maxUnavailable": most})
    world.edit(replicas=replicas)
    world.settle()
    world.edit(engine={"image": "example/bad:1"})
    for ordinal, what, rounds in [*luck, (0, None, 12)]:
        for _ in range(rounds):
            world.round()
            assert sum(not p.good for p in world.pods()) <= most
        pod = world.cluster.pods.get(f"kimi-b200-{ordinal}")
        if what and pod and pod.good and not pod.terminating:
            getattr(world.cluster, what)(pod)
    untouched = {p.uid for p in world.pods() if p.good and p.ready}
    for pod in world.pods():
        if pod.wedged:  # no template heals it where none changes
            world.cluster.lose(pod)
    world.edit(engine={} if revert else {"image": "example/good:2"})
    world.settle()
    world.assert_reached()
    if revert:
        assert untouched <= {p.uid for p in world.pods()}


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 3), st.booleans())
def test_a_good_roll_out_keeps_all_but_max_unavailable_ready_and_uses_them(replicas, most, waits_for_all):
    world = World(waits_for_all=waits_for_all, rollout={"maxUnavailable": most})
    world.edit(replicas=replicas)
    world.settle()
    world.edit(engine={"image": "example/good:2"})
    fewest = replicas
    for _ in range(ROUNDS):
        world.round()
        fewest = min(fewest, world.cluster.ready())
    assert fewest == max(replicas - most, 0)
    world.assert_reached()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 8),
    st.integers(2, 4),
    st.lists(st.integers(0, 5), max_size=8),
    st.sampled_from(["", "pause", "abort"]),
    st.integers(0, 12),
    st.booleans(),
)
def test_several_at_a_time_are_of_different_nodes_while_there_is_a_choice(
    replicas, most, patience, word, said_at, waits_for_all
):
    """The model asserts that no more than `maxUnavailable` are away at a time."""
    world = World(waits_for_all=waits_for_all, rollout={"maxUnavailable": most})
    world.edit(replicas=replicas)
    world.settle()
    for pod, ticks in zip(world.pods(), patience, strict=False):
        world.cluster.work(pod, patience=ticks)
    world.edit(engine={"image": "example/good:2"})
    for number in range(ROUNDS):
        world.say(word if said_at <= number < said_at + 15 else "")
        before, [current] = world.pods(), world.cluster.statefulsets.values()
        away = {p.node for p in before if p.draining or not p.ready}
        left = [p for p in before if p.revision != current.update_revision and p.ready and not p.draining]
        marks = [s for s in world.round().steps if isinstance(s, MarkPod)]
        marked = [s.name for s in marks if s.annotations.get(names.ANNOTATION_DRAINING)]
        assert word or len(marked) == len(marks), "what has begun to leave is not taken back"
        going = [p.node for p in left if p.name in marked]
        others = {p.node for p in left if p.name not in marked} - {*away, *going}
        alone = len({*going}) == len(going) and not {*going} & away
        assert alone or not others, f"{marked} go, and their neighbours are away, or go too"
    world.settle()
    world.assert_reached()


@pytest.mark.parametrize("most", [2, 3, 4])
def test_a_roll_out_of_many_takes_as_many_as_it_may_at_a_time(most):
    def rounds(most: int) -> int:
        world = World(rollout={"maxUnavailable": most})
        world.edit(replicas=12)
        world.settle()
        world.edit(engine={"image": "example/good:2"})
        count = 0
        while world.plan().steps or not world.settled():
            world.round()
            count += 1
        world.assert_reached()
        return count

    one_by_one = rounds(1)
    assert rounds(most) <= one_by_one * (1 / 12 + 1 / most) + 3, "the first alone, and the switch to and fro"


def test_a_first_template_that_never_worked_is_cured_everywhere_once_one_replica_is_ready():
    world = World(engine={"image": "example/bad:1"})
    world.edit(replicas=6)
    for _ in range(5):
        world.round()
    world.edit(engine={"image": "example/good:1"})
    rounds = 0
    while world.cluster.ready() < 6:
        world.round()
        rounds += 1
    assert rounds <= 14, "all but the first start side by side"


@settings(max_examples=60, deadline=None)
@given(GPU_LISTS, GPU_LISTS, st.integers(0, 6))
def test_removing_a_gpu_type_deletes_its_statefulset_alone_once_the_others_serve(before, after, replicas):
    world = World()
    world.edit(gpus=before, replicas=max(replicas, 1))
    world.settle()
    world.edit(gpus=after)
    removed = {g["type"] for g in before} - {g["type"] for g in after}
    deleted, fewest = set(), max(replicas, 1)
    for _ in range(ROUNDS):
        steps = world.round().steps
        deleted |= {s.name for s in steps if isinstance(s, DeleteObject) and s.kind == "StatefulSet"}
        fewest = min(fewest, world.cluster.ready())
    assert deleted == {names.statefulset_name("kimi", t) for t in removed}
    if len(before) == 1 and removed:
        assert fewest == max(replicas, 1)
    world.settle()
    world.assert_reached()


UNWORKABLE = st.sampled_from(
    [
        INFEASIBLE,
        {"model": {**pools.KIMI["spec"]["model"], "profile": "unknown"}},
        {"gpus": [{"type": "X999", "maxReplicas": 50}, B200]},
        {"gpus": [{"type": "X999"}]},
        {"gpus": [B300, {"type": "X999"}, B200]},
    ]
)


@settings(max_examples=60, deadline=None)
@given(UNWORKABLE, st.integers(1, 5), st.booleans())
def test_what_cannot_work_touches_nothing_that_runs(change, replicas, also_image):
    world = World()
    world.edit(replicas=replicas)
    world.settle()
    running = {p.uid for p in world.pods()}
    world.edit(**change, **({"engine": {"image": "example/good:2"}} if also_image else {}))
    for _ in range(10):
        assert world.round().steps == ()
    assert {p.uid for p in world.pods()} == running


@settings(max_examples=60, deadline=None)
@given(UNWORKABLE, st.integers(0, 5), st.integers(0, 5))
def test_what_cannot_work_can_still_be_scaled(change, before, after):
    world = World()
    world.edit(replicas=before)
    world.settle()
    world.edit(**change)
    world.edit(replicas=after)
    forbidden = (ApplyTemplate, CreateStatefulSet, RecreateStatefulSet, DeleteObject)
    for _ in range(10):
        assert not [s for s in world.round().steps if isinstance(s, forbidden)]
    kept = any(g["type"] == "B200" for g in world.manifest["spec"]["gpus"])
    assert world.cluster.ready() == (after if kept else before)


@settings(max_examples=40, deadline=None)
@given(ROUTERS, ROUTERS)
def test_a_change_of_the_router_never_touches_an_engine(before, after):
    world = World(router=before)
    world.settle()
    running = {p.uid for p in world.pods()}
    world.edit(router=after)
    world.settle()
    world.assert_reached()
    assert {p.uid for p in world.pods()} == running


def test_scaling_never_touches_the_router():
    world = World(router={"enabled": True})
    world.settle()
    before = world.cluster.deployments["kimi-router"]["metadata"]["generation"]
    world.edit(replicas=6)
    world.settle()
    assert world.cluster.deployments["kimi-router"]["metadata"]["generation"] == before


def test_an_equal_edit_changes_nothing():
    world = World()
    world.settle()
    hicache = world.manifest["spec"]["kvCache"]["hiCache"]
    world.edit(kvCache={"hiCache": {**hicache, "size": 480 * 10**9}}, load={"tokensPerRequest": 90_000})
    assert world.plan().steps == ()


def test_a_pending_replica_holds_the_roll_out_until_replicas_are_lowered():
    world = World()
    world.edit(replicas=3)
    world.settle()
    world.cluster.capacity["B200"] = 2
    world.cluster.lose(world.pods()[2])
    world.edit(engine={"image": "example/good:2"})
    for _ in range(20):
        world.round()
    assert world.cluster.ready() == 2
    assert not any(isinstance(s, Scale) for s in world.plan().steps)
    world.edit(replicas=2)
    world.settle()
    world.assert_reached()
