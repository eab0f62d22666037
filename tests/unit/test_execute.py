"""Carrying out a plan: what is never done to an object, and what a failure stops."""

from __future__ import annotations

import pytest

from sglpool import render
from sglpool.api import names
from sglpool.api.pool import Gate
from sglpool.controller.execute import Executor, Outcome
from sglpool.controller.store import Store
from sglpool.kube import Conflict, Forbidden, Invalid, NotFound, Transient
from sglpool.plan import (
    AdoptStatefulSet,
    ApplyTemplate,
    CreateStatefulSet,
    DeleteChild,
    DeleteObject,
    EnsureChild,
    MarkPod,
    OrphanStatefulSet,
    Plan,
    RecordGate,
    RecreateStatefulSet,
    RestoreTemplate,
    Scale,
    StartGate,
    Step,
    old_template,
)
from sglpool.plan.children import expected_children
from support import pools
from support.fake_kube import FakeKube

POOL = pools.pool(metadata={"uid": "pool"})
KEY = ("serving", "kimi")
STATEFULSET = render.statefulset(POOL, pools.size(POOL)[0])
NAME = STATEFULSET["metadata"]["name"]
SERVICE = next(m for m in expected_children(POOL) if m["kind"] == "Service")
CREATE = CreateStatefulSet(manifest=STATEFULSET, reason="r")
SCALE = Scale(name=NAME, replicas=2, partition=0, reason="r")


class Bench:
    """An executor over a fake API server and a real store."""

    def __init__(self) -> None:
        self.kube = FakeKube()
        self.store = Store()

    async def run(self, *stages: list[Step]) -> Outcome:
        executor = Executor(self.kube, self.store)
        return await executor.run(POOL, Plan(stages=tuple(map(tuple, stages)), desired={}))

    def running(self, *, replicas: int = 3, owner: str = "pool", **metadata: object) -> dict:
        """A StatefulSet that exists and that the store knows."""
        base = {k: v for k, v in STATEFULSET["metadata"].items() if k != "ownerReferences"}
        manifest = {
            **STATEFULSET,
            "metadata": {**base, "generation": 1, **metadata},
            "spec": {**STATEFULSET["spec"], "replicas": replicas},
        }
        stored = self.kube.put(manifest, owner=owner)
        self.store.put_statefulset(stored, KEY)
        return stored

    def live(self) -> dict:
        return self.kube.objects["StatefulSet", NAME]


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_creation_is_empty_first_and_sized_by_the_scale_manager(bench):
    outcome = await bench.run([CREATE], [SCALE])
    assert bench.live()["spec"]["replicas"] == 2
    assert bench.kube.managers == [names.MANAGER_TEMPLATE, names.MANAGER_SCALE]
    assert outcome == Outcome(changes=outcome.changes, blockers=(), transient=None, look_again=False)
    assert [change.split(" (")[0] for change in outcome.changes] == [
        f"CreateStatefulSet {NAME}",
        f"Scale {NAME} to 2, partition 0",
    ]
    [known] = bench.store.observed(KEY, {}).statefulsets
    assert (known.replicas, known.scale_owned) == (2, True)


async def test_creation_never_empties_one_that_exists_after_all(bench):
    bench.running(replicas=3)
    bench.store = Store()
    outcome = await bench.run([CREATE], [SCALE])
    assert outcome.look_again
    assert bench.live()["spec"]["replicas"] == 3
    assert [s.replicas for s in bench.store.observed(KEY, {}).statefulsets] == [3]


@pytest.mark.parametrize(
    "step", [CREATE, RecreateStatefulSet(manifest=STATEFULSET, replicas=1, revision="", reason="")]
)
async def test_a_name_that_is_taken_is_said_with_its_owner_and_nothing_is_touched(bench, step):
    before = bench.kube.put({**STATEFULSET, "metadata": {"name": NAME}}, owner="other", owner_kind="Dashboard")
    outcome = await bench.run([step], [SCALE])
    [blocker] = outcome.blockers
    assert blocker.reason == "NameConflict"
    assert f"StatefulSet {NAME} exists already and belongs to Dashboard kimi" in blocker.message
    assert names.ANNOTATION_ADOPT in blocker.message
    assert bench.live() == before


async def test_a_child_of_somebody_else_is_left_alone_until_it_is_handed_over(bench):
    stranger = {**SERVICE, "metadata": {"name": SERVICE["metadata"]["name"]}, "spec": {"selector": {"app": "theirs"}}}
    bench.kube.put(stranger)
    step = EnsureChild(manifest=SERVICE, reason="r")
    outcome = await bench.run([step])
    assert "has no owner" in outcome.blockers[0].message
    stranger["metadata"]["annotations"] = {names.ANNOTATION_ADOPT: "true"}
    bench.kube.put(stranger)
    outcome = await bench.run([step])
    assert outcome.blockers == ()
    live = bench.kube.objects["Service", SERVICE["metadata"]["name"]]
    assert live["metadata"]["ownerReferences"][0]["uid"] == "pool"


@pytest.mark.parametrize("step", [CREATE, EnsureChild(manifest=SERVICE, reason="r")])
async def test_what_a_former_pool_of_this_name_left_is_waited_for(bench, step):
    """Deleted and created again at once: the garbage collector is still at work, and nobody has to act."""
    bench.kube.put({**step.manifest, "metadata": {"name": step.manifest["metadata"]["name"]}}, owner="former")
    outcome = await bench.run([step])
    assert outcome.look_again
    assert outcome.blockers == ()


async def test_a_child_that_is_right_is_not_written(bench):
    step = EnsureChild(manifest=SERVICE, reason="r")
    assert (await bench.run([step])).changes == (f"Apply Service {SERVICE['metadata']['name']} (r)",)
    writes = len(bench.kube.managers)
    assert (await bench.run([step])).changes == ()
    assert len(bench.kube.managers) == writes
    assert ("Service", SERVICE["metadata"]["name"]) in bench.store.observed(KEY, {}).children


async def test_a_child_changed_by_hand_is_put_right(bench):
    await bench.run([EnsureChild(manifest=SERVICE, reason="r")])
    bench.kube.objects["Service", SERVICE["metadata"]["name"]]["spec"]["ports"] = []
    await bench.run([EnsureChild(manifest=SERVICE, reason="r")])
    assert bench.kube.objects["Service", SERVICE["metadata"]["name"]]["spec"]["ports"] == SERVICE["spec"]["ports"]


@pytest.mark.parametrize("step", [SCALE, ApplyTemplate(manifest=STATEFULSET, reason="r")])
async def test_an_apply_never_creates_a_statefulset_that_was_deleted_meanwhile(bench, step):
    """It would come up with the API's default of one replica."""
    bench.running()
    bench.kube.objects.clear()
    outcome = await bench.run([step])
    assert isinstance(outcome.transient, Conflict)
    assert bench.kube.objects == {}
    # Once the watch has said so, there is nothing to apply to at all.
    bench.store = Store()
    assert (await bench.run([step])).look_again


async def test_an_apply_never_reaches_another_statefulset_of_that_name(bench):
    bench.running(replicas=3)
    before = bench.kube.put({**STATEFULSET, "metadata": {"name": NAME, "uid": "another"}, "spec": {"replicas": 5}})
    outcome = await bench.run([SCALE])
    assert outcome.look_again
    assert outcome.blockers == ()
    assert bench.live() == before


async def test_deletes_name_the_uid(bench):
    pod = bench.kube.put({"kind": "Pod", "metadata": {"name": "kimi-b200-0"}})
    outcome = await bench.run(
        [DeleteObject(kind="Pod", name="kimi-b200-0", uid=pod["metadata"]["uid"], reason="r")],
    )
    assert outcome.changes == ("Delete Pod kimi-b200-0 (r)",)
    assert bench.kube.deletions["Pod", "kimi-b200-0"]["uid"] == pod["metadata"]["uid"]


@pytest.mark.parametrize("there", [True, False])
async def test_a_pod_that_is_gone_or_replaced_already_is_no_failure(bench, there):
    if there:
        bench.kube.put({"kind": "Pod", "metadata": {"name": "kimi-b200-0", "uid": "its-successor"}})
    outcome = await bench.run([DeleteObject(kind="Pod", name="kimi-b200-0", uid="gone", reason="r")])
    assert outcome == Outcome(changes=(), blockers=(), transient=None, look_again=False)
    assert (("Pod", "kimi-b200-0") in bench.kube.objects) is there


async def test_orphaning_leaves_the_pods_and_is_remembered(bench):
    live = bench.running()
    await bench.run([OrphanStatefulSet(name=NAME, uid=live["metadata"]["uid"], reason="r")])
    assert bench.kube.deletions["StatefulSet", NAME]["propagation"] == "Orphan"
    assert bench.store.observed(KEY, {}).statefulsets == ()
    bench.store.put_statefulset(live, KEY)
    assert bench.store.observed(KEY, {}).statefulsets == (), "late news does not bring it back"


def revision(name: str, image: str) -> dict:
    template = {
        "$patch": "replace",
        "metadata": {"labels": {"app": "old"}, "creationTimestamp": None},
        "spec": {"containers": [{"image": image}]},
    }
    labels = STATEFULSET["spec"]["selector"]["matchLabels"]
    return {
        "kind": "ControllerRevision",
        "metadata": {"name": name, "labels": dict(labels)},
        "data": {"spec": {"template": template}},
    }


async def test_recreation_around_orphans_holds_them_on_their_own_template(bench):
    bench.kube.put(revision("r-1", "old:1"))
    bench.kube.put(revision("r-2", "bad:1"))
    step = RecreateStatefulSet(manifest=STATEFULSET, replicas=3, revision="r-1", reason="r")
    await bench.run([step], [Scale(name=NAME, replicas=3, partition=3, reason="r")])
    spec = bench.live()["spec"]
    assert (spec["replicas"], spec["updateStrategy"]["rollingUpdate"]["partition"]) == (3, 3)
    assert spec["template"]["spec"]["containers"] == [{"image": "old:1"}]
    [known] = bench.store.observed(KEY, {}).statefulsets
    assert known.spec_hash == "", "so that the next plan rolls the wanted template out"


def test_an_old_template_matches_the_selector_and_changes_nothing_else():
    old = old_template(desired=STATEFULSET, revisions=[revision("r-1", "old:1")], revision="r-1")
    selector = STATEFULSET["spec"]["selector"]["matchLabels"]
    template = old["spec"]["template"]
    assert template == {
        "metadata": {"labels": {"app": "old", **selector}},
        "spec": {"containers": [{"image": "old:1"}]},
    }
    assert {k: v for k, v in old["spec"].items() if k != "template"} == {
        k: v for k, v in STATEFULSET["spec"].items() if k != "template"
    }
    assert old_template(desired=STATEFULSET, revisions=[], revision="r-1") == STATEFULSET


async def test_adoption_labels_the_pods_and_revisions_of_that_statefulset_alone(bench):
    mine, other = {"app": "by-hand"}, {"ownerReferences": [{"uid": "other"}]}
    owned = {"labels": mine, "ownerReferences": [{"uid": "sts", "controller": True}], "namespace": "serving"}
    bench.kube.put({"kind": "Pod", "metadata": {"name": "kimi-b200-0", **owned}, "spec": {}})
    bench.kube.put({"kind": "Pod", "metadata": {"name": "job-1", "labels": mine, **other}, "spec": {}})
    bench.kube.put({"kind": "ControllerRevision", "metadata": {"name": "r-1", **owned}})
    labels = {names.LABEL_POOL: "kimi", names.LABEL_GPU: "B200"}
    await bench.run([AdoptStatefulSet(name=NAME, uid="sts", selector=mine, labels=labels, reason="r")])
    labelled = {n for (_, n), o in bench.kube.objects.items() if labels.items() <= o["metadata"]["labels"].items()}
    assert labelled == {"kimi-b200-0", "r-1"}
    assert [p.name for p in bench.store.observed(KEY, {}).pods] == ["kimi-b200-0"]


def failure(kind: type, message: str, code: int) -> Exception:
    return kind(message, verb="apply", kind="Service", namespace="serving", name="kimi-engine", code=code)


async def test_a_failing_step_stops_later_stages_but_not_its_neighbours(bench):
    bench.kube.failures["apply", "Service", SERVICE["metadata"]["name"]] = failure(Transient, "down", 503)
    outcome = await bench.run([EnsureChild(manifest=SERVICE, reason="r"), CREATE], [SCALE])
    assert isinstance(outcome.transient, Transient)
    assert [change.split()[0] for change in outcome.changes] == ["CreateStatefulSet"]
    assert bench.live()["spec"]["replicas"] == 0


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (failure(Forbidden, 'cannot patch resource "services"', 403), "Forbidden"),
        (failure(Invalid, "spec.ports: Required value", 422), "InvalidSpec"),
    ],
)
async def test_what_the_user_must_cure_is_a_blocker_in_the_servers_words(bench, error, reason):
    bench.kube.failures["apply", "Service", SERVICE["metadata"]["name"]] = error
    outcome = await bench.run([EnsureChild(manifest=SERVICE, reason="r")])
    [blocker] = outcome.blockers
    assert blocker.reason == reason
    assert "Service serving/kimi-engine" in blocker.message
    assert error.message in blocker.message
    assert outcome.transient is None


async def test_what_a_child_refers_to_may_be_known_a_moment_later(bench):
    """A RoleBinding's Role, for one. It says nothing about the pool."""
    bench.kube.failures["apply", "Service", SERVICE["metadata"]["name"]] = NotFound(
        'roles "x" not found', verb="apply", kind="RoleBinding", code=404
    )
    outcome = await bench.run([EnsureChild(manifest=SERVICE, reason="r")])
    assert (outcome.look_again, outcome.blockers) == (True, ())


async def test_a_namespace_that_goes_away_is_no_news(bench):
    words = "unable to create new content in namespace serving because it is being terminated"
    bench.kube.failures["apply", "Service", SERVICE["metadata"]["name"]] = failure(Forbidden, words, 403)
    outcome = await bench.run([EnsureChild(manifest=SERVICE, reason="r")], [CREATE])
    assert outcome == Outcome(changes=(), blockers=(), transient=None, look_again=False)
    assert bench.kube.objects == {}


async def test_a_bug_is_raised(bench):
    bench.kube.failures["apply", "Service", SERVICE["metadata"]["name"]] = KeyError("oops")
    with pytest.raises(KeyError):
        await bench.run([EnsureChild(manifest=SERVICE, reason="r")])


DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {
        "name": "kimi-router",
        "namespace": "serving",
        "labels": names.child_labels("kimi", names.COMPONENT_ROUTER),
        "annotations": {names.ANNOTATION_SPEC_HASH: "new", names.ANNOTATION_RENDER_HASH: "new"},
        "ownerReferences": [{"kind": names.KIND, "name": "kimi", "uid": "pool", "controller": True}],
    },
    "spec": {"replicas": 1},
}


@pytest.mark.parametrize("exists", [False, True])
async def test_an_applied_deployment_is_known_before_any_watch_tells_of_it(bench, exists):
    if exists:
        old = {**DEPLOYMENT["metadata"], "annotations": {names.ANNOTATION_SPEC_HASH: "old"}}
        bench.store.put_deployment(bench.kube.put({**DEPLOYMENT, "metadata": old}))
    await bench.run([EnsureChild(manifest=DEPLOYMENT, reason="r")])
    [known] = bench.store.observed(KEY, {}).deployments
    assert (known.spec_hash, known.owner_uid) == ("new", "pool")


async def test_a_child_that_nobody_asks_for_is_deleted_by_its_uid_and_forgotten(bench):
    live = bench.kube.put(DEPLOYMENT)
    bench.store.put_deployment(live)
    bench.store.add_child(KEY, "Deployment", "kimi-router")
    outcome = await bench.run([DeleteChild(kind="Deployment", name="kimi-router", reason="r")])
    assert outcome.changes == ("Delete Deployment kimi-router (r)",)
    assert bench.kube.deletions["Deployment", "kimi-router"]["uid"] == live["metadata"]["uid"]
    observed = bench.store.observed(KEY, {})
    assert (observed.deployments, observed.children) == ((), frozenset())


@pytest.mark.parametrize("owner", ["", "other"])
async def test_a_child_of_somebody_else_is_never_deleted(bench, owner):
    stranger = {**DEPLOYMENT, "metadata": {"name": "kimi-router", "labels": DEPLOYMENT["metadata"]["labels"]}}
    bench.kube.put(stranger, owner=owner)
    bench.store.replace_children({}, {KEY: [("Deployment", "kimi-router")]})
    outcome = await bench.run([DeleteChild(kind="Deployment", name="kimi-router", reason="r")])
    assert outcome.changes == ()
    assert ("Deployment", "kimi-router") in bench.kube.objects
    assert bench.store.observed(KEY, {}).surplus == frozenset()


async def test_a_child_that_is_gone_already_is_no_failure(bench):
    outcome = await bench.run([DeleteChild(kind="Role", name="kimi-router", reason="r")])
    assert outcome == Outcome(changes=(), blockers=(), transient=None, look_again=False)


POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": f"{NAME}-0", "namespace": "serving", "uid": "pod", "labels": {names.LABEL_POOL: "kimi"}},
    "spec": {},
}
MARK = MarkPod(name=f"{NAME}-0", uid="pod", annotations={names.ANNOTATION_DRAINING: "true"}, reason="r")


async def test_a_mark_is_known_before_any_watch_tells_of_it(bench):
    bench.kube.put(POD)
    outcome = await bench.run([MARK])
    assert outcome.done == (MARK,)
    assert [p.draining for p in bench.store.observed(KEY, {}).pods] == [True]
    assert bench.kube.objects["Pod", f"{NAME}-0"]["metadata"]["uid"] == "pod"


@pytest.mark.parametrize(
    "error",
    [
        NotFound("gone", verb="patch", kind="Pod", code=404),
        Invalid('metadata.uid: Invalid value: "pod": field is immutable', verb="patch", kind="Pod", code=422),
        Conflict("another uid", verb="patch", kind="Pod", code=409),
    ],
)
async def test_a_pod_to_mark_that_is_gone_or_replaced_already_is_no_failure(bench, error):
    bench.kube.failures["patch", "Pod", f"{NAME}-0"] = error
    outcome = await bench.run([MARK])
    assert (outcome.changes, outcome.done, outcome.blockers, outcome.transient) == ((), (), (), None)


async def test_what_a_gate_found_is_written_by_its_own_manager_and_learnt_from_the_watch(bench):
    bench.running()
    await bench.run([RecordGate(name=NAME, proven="r1", gated="r2", reason="r")])
    assert bench.kube.managers == [names.MANAGER_GATE]
    annotations = bench.live()["metadata"]["annotations"]
    assert (annotations[names.ANNOTATION_PROVEN], annotations[names.ANNOTATION_GATED]) == ("r1", "r2")
    [known] = bench.store.observed(KEY, {}).statefulsets
    assert known.proven == "", "the event must be news, or nobody plans again"


async def test_a_gate_is_started_once_and_never_over_somebody_elses_job(bench):
    gate = Gate(image="example/test:1")
    job = render.gate_job(POOL, gate, revision="r2", pod_uid="pod", address="10.0.0.1")
    start = StartGate(manifest=job, reason="r")
    assert (await bench.run([start])).done == (start,)
    assert (await bench.run([start])).done == ()
    assert [j.pod_uid for j in bench.store.observed(KEY, {}).jobs] == ["pod"]
    bench.kube.put(job, owner="other", owner_kind="CronJob")
    [blocker] = (await bench.run([start])).blockers
    assert blocker.reason == "NameConflict"


@pytest.mark.parametrize("kept", [True, False])
async def test_an_earlier_template_is_put_back_under_the_hashes_of_the_spec(bench, kept):
    bench.running()
    template = {"metadata": {}, "spec": {"containers": [{"name": "engine", "image": "old"}]}}
    if kept:
        metadata = {"name": "r1", "labels": STATEFULSET["spec"]["selector"]["matchLabels"]}
        data = {"spec": {"template": template}}
        bench.kube.put({"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": metadata, "data": data})
    before = bench.live()
    await bench.run([RestoreTemplate(manifest=STATEFULSET, revision="r1", failed="r2", reason="r")])
    if not kept:
        assert bench.live() == before, "what runs is left as it is"
        return
    live = bench.live()
    assert live["spec"]["template"]["spec"]["containers"][0]["image"] == "old"
    hashes = STATEFULSET["metadata"]["annotations"]
    assert live["metadata"]["annotations"] == {**hashes, names.ANNOTATION_RETURNED: "r2"}
    assert live["spec"]["replicas"] == 3
