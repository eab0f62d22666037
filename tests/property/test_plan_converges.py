"""Plans applied to a model of Kubernetes: whatever users and bad luck do, the pool gets where its spec says."""

from __future__ import annotations

import functools
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from sglpool.api import names
from sglpool.api.pool import Pool
from sglpool.api.validate import load_pool
from sglpool.catalog import load_catalog
from sglpool.plan import (
    ApplyTemplate,
    CreateStatefulSet,
    DeleteObject,
    Drained,
    MarkPod,
    Plan,
    RecreateStatefulSet,
    Scale,
    make_plan,
)
from sglpool.plan.gate import rollout_hold
from sglpool.plan.status import make_status
from sglpool.sizing.pools import SizedGPU, size_pool
from support import pools
from support.model_cluster import DRAIN_S, ModelCluster
from support.model_objects import ModelPod

CATALOG = load_catalog()
PLENTY = {"B200": 50, "B300": 50, "H200": 50}
ROUNDS = 80
"""Rounds of plan and tick in which anything here must settle: a few for each replica, one after another."""

B200, B300 = {"type": "B200"}, {"type": "B300"}
GPU_LISTS = st.sampled_from(
    [[B200], [B300], [B200, B300], [B300, B200], [{**B200, "maxReplicas": 2}, B300], [B200, {**B300, "minReplicas": 1}]]
)
INFEASIBLE: pools.Json = {"kvCache": {"hiCache": {"size": "9000G"}}}
FEASIBLE: pools.Json = {"kvCache": {"hiCache": {"size": "480G"}}}


@functools.cache
def parsed(text: str) -> tuple[Pool, tuple[SizedGPU, ...]]:
    pool = load_pool(json.loads(text))
    return pool, size_pool(pool, CATALOG, node_memory_bytes={}, hicache_bytes={})


class World:
    """A pool, and the cluster that it lives in."""

    def __init__(self, *, waits_for_all: bool = False, **spec: Any) -> None:
        self.cluster = ModelCluster(dict(PLENTY), waits_for_all=waits_for_all)
        self.manifest = pools.manifest(metadata={"uid": "pool"})
        self.manifest["spec"]["rollout"] = {"drainTimeout": f"{DRAIN_S:.0f}s"}
        self.edit(gpus=[B200], replicas=3, **spec)

    def edit(self, rollout: pools.Json | None = None, **spec: Any) -> None:
        self.manifest["spec"].update(spec)
        merged = {**self.manifest["spec"]["rollout"], **(rollout or {})}
        self.manifest["spec"]["rollout"] = {k: v for k, v in merged.items() if v is not None}
        self.cluster.max_unavailable = self.pool.spec.rollout.max_unavailable
        self.cluster.routed = self.pool.spec.router.enabled

    @property
    def pool(self) -> Pool:
        return parsed(json.dumps(self.manifest))[0]

    @property
    def sized(self) -> tuple[SizedGPU, ...]:
        return parsed(json.dumps(self.manifest))[1]

    def say(self, word: str) -> None:
        """Annotate the pool about its roll-out; an empty word removes the annotation."""
        self.manifest["metadata"]["annotations"] = {names.ANNOTATION_ROLLOUT: word} if word else {}

    def plan(self) -> Plan:
        cluster = self.cluster
        return make_plan(self.pool, self.sized, cluster.observe(), loads=cluster.loads(), now_s=cluster.now_s)

    def round(self) -> Plan:
        plan = self.plan()
        self.cluster.carry_out(self.pool, plan)
        self.cluster.tick()
        return plan

    def settle(self) -> None:
        """Until there is nothing to do and every wanted replica is ready on the right revision."""
        for _ in range(ROUNDS):
            if not self.round().steps and self.settled():
                return
        raise AssertionError(f"not settled after {ROUNDS} rounds: {self.plan().steps} {self.cluster.pods}")

    def settled(self) -> bool:
        status = make_status(
            self.pool, self.sized, self.cluster.observe(), desired=self.plan().desired, blockers=(), now_s=0
        )
        ready = next(c for c in status["conditions"] if c["type"] == "Ready")
        progressing = next(c for c in status["conditions"] if c["type"] == "Progressing")
        return bool(ready["status"] == "True" and progressing["reason"] == "Complete")

    def assert_reached(self) -> None:
        desired = {k: v for k, v in self.plan().desired.items() if v}
        pods = self.cluster.pods.values()
        assert {t: sum(p.gpu_type == t for p in pods) for t in {p.gpu_type for p in pods}} == desired
        assert sum(desired.values()) == self.pool.spec.replicas
        assert all(p.ready and not p.terminating for p in pods)
        for current in self.cluster.statefulsets.values():
            assert current.partition == 0
            assert {p.revision for p in pods if p.owner == current.uid} <= {current.update_revision}
        assert not any(p.annotations.get(names.ANNOTATION_UNPROVEN) == "true" for p in pods)

    def pods(self) -> list[ModelPod]:
        return sorted((p for p in self.cluster.pods.values() if not p.terminating), key=lambda p: p.name)


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
GATE: pools.Json = {"image": "example/test:1"}


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

    @precondition(lambda self: self.world.pods())
    @rule(data=st.data(), what=st.sampled_from(["restart", "wedge", "lose"]))
    def fail(self, data, what):
        pod = data.draw(st.sampled_from(self.world.pods()))
        getattr(self.world.cluster, what)(pod)

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
@given(st.integers(2, 6), st.integers(1, 3), BAD_LUCK, st.booleans(), st.integers(0, 3))
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
