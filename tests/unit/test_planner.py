"""Steps of single situations: creation, adoption, orphans, strangers, upgrades. Histories are in the properties."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sglpool import render
from sglpool.api import names
from sglpool.api.pool import Pool
from sglpool.plan import (
    AdoptStatefulSet,
    ApplyTemplate,
    CreateStatefulSet,
    DeleteObject,
    EnsureChild,
    Observed,
    ObservedStatefulSet,
    OrphanStatefulSet,
    Plan,
    RecreateStatefulSet,
    Refusal,
    Scale,
    make_plan,
)
from sglpool.plan.children import contains, expected_children, is_healthy, stale_configmaps
from support import pools
from support.observed import observed_pod, observed_statefulset


def pool(changes: pools.Json | None = None, **metadata: object) -> Pool:
    return pools.pool({"gpus": [{"type": "B200"}], **(changes or {})}, metadata={"uid": "pool", **metadata})


POOL = pool()
MANIFEST = render.statefulset(POOL, pools.size(POOL)[0])
HASHES = MANIFEST["metadata"]["annotations"]
CHILDREN = frozenset((c["kind"], c["metadata"]["name"]) for c in expected_children(POOL))


def running(**changes: object) -> ObservedStatefulSet:
    """The pool's StatefulSet as it should be."""
    spec = MANIFEST["spec"]
    return observed_statefulset(
        **{
            "replicas": 2,
            "spec_hash": HASHES[names.ANNOTATION_SPEC_HASH],
            "render_hash": HASHES[names.ANNOTATION_RENDER_HASH],
            "selector": spec["selector"]["matchLabels"],
            **changes,
        }
    )


def plan(of: Pool = POOL, *, statefulsets=(), pods=(), children=CHILDREN, refusals=None) -> Plan:
    seen = Observed(statefulsets=tuple(statefulsets), pods=tuple(pods), children=children, refusals=refusals or {})
    return make_plan(of, pools.size(of), seen)


def shape(made: Plan) -> list[list[str]]:
    return [sorted(type(step).__name__ for step in stage) for stage in made.stages]


def test_a_new_pool_is_created_whole_and_sized_last():
    made = plan(children=frozenset())
    assert shape(made) == [["CreateStatefulSet", *["EnsureChild"] * 4], ["Scale"]]
    assert made.steps[-1] == Scale(name="kimi-b200", replicas=2, partition=0, reason="first size")
    assert all(step.reason for step in made.steps)


def test_a_parked_pool_is_created_without_a_size():
    assert shape(plan(pool({"replicas": 0}))) == [["CreateStatefulSet", "EnsureChild"]]


def test_a_pool_as_it_should_be_needs_nothing():
    assert plan(statefulsets=[running()]).stages == ()


def test_an_upgraded_operator_applies_nothing_until_the_user_asks():
    former = running(render_hash="of-a-former-version")
    assert plan(statefulsets=[former]).stages == ()
    asks = pool(annotations={names.ANNOTATION_RENDER: names.RENDER_LATEST})
    assert shape(plan(asks, statefulsets=[former])) == [["EnsureChild", "Scale"], ["ApplyTemplate"]]
    assert plan(asks, statefulsets=[running()]).stages == ()


def test_a_changed_template_is_applied_only_after_every_pod_is_held():
    made = plan(statefulsets=[running(spec_hash="former")])
    assert shape(made) == [["EnsureChild", "Scale"], ["ApplyTemplate"]]
    [scale] = [s for s in made.steps if isinstance(s, Scale)]
    assert (scale.replicas, scale.partition) == (2, 2)
    held = plan(statefulsets=[running(spec_hash="former", partition=2)])
    assert shape(held) == [["EnsureChild"], ["ApplyTemplate"]]
    unowned = plan(statefulsets=[running(spec_hash="former", partition=2, scale_owned=False)])
    assert shape(unowned) == [["EnsureChild", "Scale"], ["ApplyTemplate"]]


@pytest.mark.parametrize(("wanted", "held"), [(5, 2), (1, 1), (0, 0)])
def test_a_change_of_template_and_size_starts_no_replica_on_the_old_template(wanted, held):
    made = plan(pool({"replicas": wanted}), statefulsets=[running(spec_hash="former")])
    [scale] = [s for s in made.steps if isinstance(s, Scale)]
    assert (scale.replicas, scale.partition) == (held, held)


def test_a_size_that_nobody_owns_is_taken_over():
    made = plan(statefulsets=[running(scale_owned=False)])
    assert shape(made) == [["Scale"]]


@pytest.mark.parametrize("caught_up", [True, False])
def test_nothing_moves_on_a_status_that_lies(caught_up):
    pods = [observed_pod(0, revision="old"), observed_pod(1, revision="new")]
    made = plan(statefulsets=[running(partition=1, current="old", caught_up=caught_up)], pods=pods)
    assert shape(made) == ([["Scale"]] if caught_up else [])
    assert all("roll-out reaches every ordinal" in step.reason for step in made.steps)


def test_pods_are_replaced_a_call_after_the_partition_moved():
    pods = [observed_pod(0, revision="old"), observed_pod(1, revision="old", ready=False)]
    assert shape(plan(statefulsets=[running(partition=2, current="old")], pods=pods)) == [["Scale"]]
    made = plan(statefulsets=[running(partition=1, current="old")], pods=pods)
    assert [(s.kind, s.name, s.uid) for s in made.steps] == [("Pod", "kimi-b200-1", "pod-B200-1")]


def test_a_refused_replica_does_not_hold_up_its_cure():
    at_work = running(partition=2, current="old")
    pods = [observed_pod(1, revision="old")]
    assert plan(statefulsets=[at_work], pods=pods).stages == ()
    refusals = {"kimi-b200": Refusal.from_message("violates PodSecurity")}
    assert shape(plan(statefulsets=[at_work], pods=pods, refusals=refusals)) == [["Scale"]]


def test_changed_immutable_fields_orphan_the_pods():
    made = plan(statefulsets=[running(spec_hash="former", service_name="former")])
    assert [type(s) for s in made.steps] == [OrphanStatefulSet]


def test_orphans_get_a_statefulset_around_them_with_the_template_that_most_of_them_run():
    pods = [observed_pod(n, owner_uid="", revision=revision) for n, revision in enumerate(["old", "old", "new"])]
    made = plan(pods=pods)
    assert shape(made) == [["EnsureChild", "RecreateStatefulSet"], ["Scale"]]
    [recreate] = [s for s in made.steps if isinstance(s, RecreateStatefulSet)]
    assert (recreate.replicas, recreate.revision) == (3, "old")
    assert (made.steps[-1].replicas, made.steps[-1].partition) == (3, 3)


def test_equal_orphans_count_as_what_the_lowest_ordinal_runs():
    pods = [observed_pod(1, owner_uid="", revision="new"), observed_pod(0, owner_uid="", revision="old")]
    [recreate] = [s for s in plan(pods=pods).steps if isinstance(s, RecreateStatefulSet)]
    assert recreate.revision == "old"


@pytest.mark.parametrize(
    ("pod", "creates"),
    [
        # Its StatefulSet is gone and the garbage collector has not come yet: orphan or doomed, nobody knows.
        (observed_pod(0, owner_uid="gone"), False),
        (observed_pod(0, owner_uid="gone", terminating=True, ready=False), True),
        (observed_pod(0, owner_uid="", terminating=True, ready=False), True),
        (observed_pod(0, owner_uid="", name="not-ours-0"), True),
    ],
)
def test_creation_waits_while_it_is_open_what_becomes_of_old_pods(pod, creates):
    made = plan(pods=[pod])
    assert any(isinstance(s, CreateStatefulSet) for s in made.steps) is creates
    assert not any(isinstance(s, RecreateStatefulSet) for s in made.steps)


def test_somebody_elses_statefulset_is_not_touched():
    """The attempt to create finds it, and the API server knows its owner."""
    stranger = running(owner_uid="other", spec_hash="")
    assert shape(plan(statefulsets=[stranger])) == [["CreateStatefulSet"]]
    # Handed over, but owned by another controller: that one would fight for it.
    assert shape(plan(statefulsets=[replace(stranger, adoptable=True)])) == [["CreateStatefulSet"]]


def test_adoption_holds_the_pods_before_the_template():
    handed_over = running(owner_uid="", adoptable=True, spec_hash="", replicas=5)
    made = plan(statefulsets=[handed_over])
    assert shape(made) == [["AdoptStatefulSet"], ["EnsureChild", "Scale"], ["ApplyTemplate"]]
    [scale] = [s for s in made.steps if isinstance(s, Scale)]
    assert (scale.replicas, scale.partition) == (5, 5)


def test_adoption_with_other_immutable_fields_orphans_after_labelling():
    handed_over = running(owner_uid="", adoptable=True, spec_hash="", selector={"app": "by-hand"})
    made = plan(statefulsets=[handed_over])
    assert shape(made) == [["AdoptStatefulSet"], ["OrphanStatefulSet"]]
    [adopt] = [s for s in made.steps if isinstance(s, AdoptStatefulSet)]
    assert adopt.selector == {"app": "by-hand"}
    assert MANIFEST["spec"]["selector"]["matchLabels"].items() <= adopt.labels.items()


def test_a_type_that_left_takes_its_statefulset_and_orphans_along_and_nothing_else():
    b300 = running(name="kimi-b300", uid="sts-b300", gpu_type="B300")
    strangers = [running(name="kimi-h200", uid="other", gpu_type="H200", owner_uid="other")]
    pods = [
        observed_pod(0, gpu_type="H200", owner_uid=""),
        observed_pod(1, gpu_type="H200", owner_uid="", name="another-1"),
        observed_pod(2, gpu_type="H200", owner_uid="x"),
        observed_pod(0),
        observed_pod(1),
    ]
    made = plan(statefulsets=[running(), b300, *strangers], pods=pods)
    assert [(s.kind, s.name) for s in made.steps if isinstance(s, DeleteObject)] == [
        ("StatefulSet", "kimi-b300"),
        ("Pod", "kimi-h200-0"),
    ]


def test_shared_children_are_kept_whatever_the_spec_says():
    infeasible = pool({"kvCache": {"hiCache": {"size": "9000G"}}})
    made = plan(infeasible, statefulsets=[running()], children=frozenset())
    assert {type(s) for s in made.steps} == {EnsureChild}
    assert plan(infeasible, children=frozenset()).stages == ()


def test_stages_of_two_types_run_side_by_side():
    both = pool({"gpus": [{"type": "B200", "maxReplicas": 1}, {"type": "B300"}]})
    made = plan(both)
    assert shape(made) == [["CreateStatefulSet"] * 2 + ["EnsureChild"] * 2, ["Scale", "Scale"]]
    assert not any(isinstance(s, ApplyTemplate) for s in made.steps)


def test_a_child_is_healthy_unless_changed_by_hand():
    service = next(c for c in expected_children(POOL) if c["kind"] == "Service")
    assert is_healthy({**service, "status": {"loadBalancer": {}}}, service)
    by_hand = {**service, "spec": {**service["spec"], "selector": {}}}
    assert not is_healthy(by_hand, service)
    # Another version rendered it: its own business.
    metadata = {**service["metadata"], "annotations": {names.ANNOTATION_RENDER_HASH: "another"}}
    assert is_healthy({**by_hand, "metadata": metadata}, service)
    assert not is_healthy({**service, "metadata": {**service["metadata"], "ownerReferences": []}}, service)


@pytest.mark.parametrize(
    ("live", "desired", "expected"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ([{"name": "x", "port": 1, "protocol": "TCP"}], [{"name": "x", "port": 1}], True),
        ([{"name": "x"}], [{"name": "y"}], False),
        ("text", {"a": 1}, False),
        ("text", ["text"], False),
        (None, 1, False),
    ],
)
def test_contains(live, desired, expected):
    assert contains(live, desired) is expected


def test_configmaps_go_when_neither_template_nor_pod_nor_revision_names_them():
    def configmap(suffix: str, *, owner: str = "pool") -> pools.Json:
        owners = [{"uid": owner, "controller": True}]
        return {"metadata": {"name": f"kimi-{suffix}", "uid": suffix, "ownerReferences": owners}}

    def user(name: str) -> pools.Json:
        return {"spec": {"volumes": [{"name": "scripts", "configMap": {"name": name}}]}}

    live = [configmap("launch-1"), configmap("launch-2"), configmap("launch-3", owner="other"), configmap("envoy-1")]
    users = [user("kimi-launch-1"), {"spec": {"volumes": [{"configMap": None}]}}]
    assert stale_configmaps(POOL, live, users) == [live[1]]
