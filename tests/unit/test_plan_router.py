"""When the router's objects are applied and deleted, and what the user is told of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.api.conditions import TABLE
from sglpool.api.pool import Pool
from sglpool.plan import DeleteChild, EnsureChild, Observed, ObservedDeployment, ObservedPod, Plan, Step, make_plan
from sglpool.plan.children import expected_children, expected_router_children, is_healthy, stale_configmaps
from sglpool.plan.status import make_status
from sglpool.render import router_configmap, spec_hash
from support import pools
from support.kstatus import kstatus
from support.observed import observed_pod, observed_statefulset

ONE_TYPE: pools.Json = {"gpus": [{"type": "B200"}]}


class Scene:
    """A pool whose engines are as they should be, and a router in some state."""

    def __init__(self, router: pools.Json | None = None, **spec: Any) -> None:
        self.annotations: dict[str, str] = {}
        self.router = {"enabled": True, **(router or {})}
        self.spec = {**ONE_TYPE, **spec}
        self.status: Manifest = {}
        self.deployments: dict[str, ObservedDeployment] = {}
        self.router_pods: list[ObservedPod] = []
        self.surplus: set[tuple[str, str]] = set()
        self.statefulset_hash = spec_hash(self.pool, pools.size(self.pool)[0])
        self.children = {(c["kind"], c["metadata"]["name"]) for c in (*expected_children(self.pool), *self.expected())}
        self.deploy()

    @property
    def pool(self) -> Pool:
        metadata = {"uid": "pool", "generation": 4, "annotations": self.annotations}
        pool = pools.pool({**self.spec, "router": self.router}, metadata=metadata)
        return replace(pool, status=self.status)

    def expected(self) -> tuple[Manifest, ...]:
        return expected_router_children(self.pool, pools.size(self.pool))

    def deploy(self, **changes: Any) -> None:
        """Every Deployment as it should be now, the router's with changes."""
        for child in self.expected():
            if child["kind"] != "Deployment":
                continue
            wanted, annotations = child["spec"]["replicas"], child["metadata"]["annotations"]
            view = ObservedDeployment(
                name=child["metadata"]["name"],
                uid="d",
                owner_uid="pool",
                spec_hash=annotations[names.ANNOTATION_SPEC_HASH],
                render_hash=annotations[names.ANNOTATION_RENDER_HASH],
                caught_up=True,
                total=wanted,
                updated=wanted,
                ready=wanted,
                refused="",
                late="",
            )
            fields = changes if view.name == "kimi-router" else {}
            self.deployments[view.name] = replace(view, **fields)

    def observed(self) -> Observed:
        return Observed(
            statefulsets=(observed_statefulset(replicas=2, spec_hash=self.statefulset_hash),),
            pods=(observed_pod(0), observed_pod(1)),
            router_pods=tuple(self.router_pods),
            deployments=tuple(self.deployments.values()),
            children=frozenset(self.children),
            surplus=frozenset(self.surplus),
            refusals={},
        )

    def plan(self) -> Plan:
        return make_plan(self.pool, pools.size(self.pool), self.observed())

    def due(self) -> list[Step]:
        """Steps of the router."""
        return [s for s in self.plan().steps if isinstance(s, EnsureChild | DeleteChild)]

    def make_status(self) -> Manifest:
        sized = pools.size(self.pool)
        return make_status(self.pool, sized, self.observed(), desired={"B200": 2}, blockers=(), now_s=0)

    def conditions(self) -> dict[str, Manifest]:
        found = {c["type"]: c for c in self.make_status()["conditions"]}
        for kind, condition in found.items():
            assert TABLE[kind][condition["reason"]].status == condition["status"]
        return found

    def reasons(self) -> dict[str, str]:
        return {kind: c["reason"] for kind, c in self.conditions().items()}

    def kstatus(self) -> str:
        return kstatus({"metadata": {"generation": 4}, "status": self.make_status()})


def applied(steps: list[Step]) -> set[str]:
    return {s.manifest["kind"] for s in steps if isinstance(s, EnsureChild)}


# --- Steps


def test_a_router_as_it_should_be_needs_nothing() -> None:
    assert Scene().plan().stages == ()


def test_a_new_router_is_applied_whole_and_its_pods_last() -> None:
    scene = Scene()
    scene.deployments, scene.children = {}, set()
    first, second = scene.plan().stages
    assert {s.manifest["kind"] for s in second} == {"Deployment"}
    assert {s.manifest["kind"] for s in first} >= {"ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Service"}


def test_a_change_of_the_router_applies_the_router_and_touches_no_engine() -> None:
    scene = Scene()
    scene.router["bodyLimit"] = "1Mi"
    steps = scene.plan().steps
    assert steps
    assert all(isinstance(s, EnsureChild) for s in steps)
    assert all(s.manifest["metadata"]["labels"][names.LABEL_COMPONENT] != "engine" or
               s.manifest["kind"] == "NetworkPolicy" for s in steps)  # fmt: skip
    [configmap] = [s.manifest for s in steps if s.manifest["kind"] == "ConfigMap"]
    assert configmap == router_configmap(scene.pool, pools.size(scene.pool))
    scene.deploy()
    assert scene.plan().stages == ()


def test_another_version_of_the_operator_applies_nothing_until_it_is_asked() -> None:
    scene = Scene()
    scene.deploy(render_hash="of another version")
    assert scene.plan().stages == ()
    scene.annotations = {names.ANNOTATION_RENDER: names.RENDER_LATEST}
    assert "Deployment" in applied(scene.due())


def test_what_was_deleted_by_hand_comes_back_alone() -> None:
    scene = Scene()
    scene.children.discard(("Service", "kimi-router"))
    assert applied(scene.due()) == {"Service"}


def test_a_deployment_changed_by_hand_comes_back_with_its_configmap() -> None:
    scene = Scene()
    scene.children.discard(("Deployment", "kimi-router"))
    assert applied(scene.due()) == {"Deployment", "ConfigMap"}


def test_a_deployment_of_somebody_else_does_not_count() -> None:
    scene = Scene()
    scene.deploy(owner_uid="other")
    assert "Deployment" in applied(scene.due())
    assert scene.reasons()["RouterReady"] == "RouterStarting"


def test_a_router_that_is_switched_off_is_taken_down_whole_and_only_it() -> None:
    scene = Scene({"sessionStore": {"managed": {}}})
    scene.router = {"enabled": False}
    gone = {(s.kind, s.name) for s in scene.due() if isinstance(s, DeleteChild)}
    assert gone == {
        *((kind, "kimi-router") for kind in (
            "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Role", "RoleBinding", "Service", "ServiceAccount"
        )),
        *((kind, "kimi-valkey") for kind in ("Deployment", "NetworkPolicy", "Service")),
        ("NetworkPolicy", "kimi-engine"),
    }  # fmt: skip
    assert "RouterReady" not in scene.reasons()


def test_leftovers_that_only_a_listing_found_go_too() -> None:
    scene = Scene()
    scene.surplus = {("Service", "kimi-valkey"), ("ServiceAccount", "kimi-engine"), ("Secret", "kimi")}
    assert [(s.kind, s.name) for s in scene.due()] == [("Service", "kimi-valkey")]


def test_a_pool_that_no_longer_fits_keeps_its_router_as_it_is() -> None:
    scene = Scene()
    scene.spec |= {"kvCache": {"hiCache": {"size": "9000G"}}}
    scene.router["bodyLimit"] = "1Mi"
    assert scene.plan().stages == ()
    scene.children.discard(("Service", "kimi-router"))
    assert applied(scene.due()) == {"Service"}


def test_a_pool_that_never_fitted_gets_no_router() -> None:
    pool = pools.pool({**pools.ROUTED, "kvCache": {"hiCache": {"size": "9000G"}}}, metadata={"uid": "pool"})
    assert make_plan(pool, pools.size(pool), Observed(refusals={})).stages == ()


@pytest.mark.parametrize(("total", "kept"), [(1, False), (2, True)])
def test_settings_of_old_router_pods_go_when_none_can_come_back(total: int, kept: bool) -> None:
    pool = Scene().pool
    owners = [{"kind": names.KIND, "uid": "pool", "controller": True}]
    old = {"metadata": {"name": "kimi-router-old", "ownerReferences": owners}}
    current = {"metadata": {"name": "kimi-router-new", "ownerReferences": owners}}
    deployment = {
        "kind": "Deployment",
        "metadata": {"generation": 1},
        "spec": {"template": {"spec": {"volumes": [{"configMap": {"name": "kimi-router-new"}}]}}},
        "status": {"observedGeneration": 1, "replicas": total, "updatedReplicas": 1},
    }
    assert stale_configmaps(pool, [old, current], [deployment]) == ([] if kept else [old])


def test_defaults_of_the_server_are_no_change_by_hand_and_another_replica_count_is() -> None:
    deployment = next(c for c in Scene().expected() if c["kind"] == "Deployment")
    live = {**deployment, "spec": {**deployment["spec"], "minReadySeconds": 0}, "status": {"replicas": 1}}
    assert is_healthy(live, deployment)
    assert not is_healthy({**live, "spec": {**live["spec"], "replicas": 0}}, deployment)


# --- Status

REACHED: Manifest = {
    "observedGeneration": 4,
    "conditions": [
        {"type": kind, "status": "True", "reason": "X", "lastTransitionTime": "2001-01-01T00:00:00Z"}
        for kind in ("Ready", "Scheduled")
    ],
}


def router_pod(**changes: Any) -> ObservedPod:
    fields = {"gpu_type": "", "component": "router", "name": "kimi-router-abc", **changes}
    return observed_pod(-1, **fields)


def test_ready_engines_behind_a_ready_router_are_ready() -> None:
    scene = Scene()
    reasons = scene.reasons()
    assert (reasons["Ready"], reasons["RouterReady"]) == ("AllReplicasReady", "RouterAvailable")
    assert scene.kstatus() == "Current"
    assert scene.make_status()["endpoint"] == "http://kimi-router.serving.svc:8000/v1"


def test_a_pool_waits_for_its_first_router() -> None:
    scene = Scene()
    scene.deploy(ready=0)
    reasons = scene.reasons()
    assert (reasons["Ready"], reasons["RouterReady"]) == ("RouterStarting", "RouterStarting")
    assert (reasons["Available"], reasons["Progressing"]) == ("RouterUnavailable", "RouterStarting")
    assert scene.kstatus() == "InProgress"


def test_a_router_that_is_lost_later_is_an_outage() -> None:
    scene = Scene()
    scene.status = REACHED
    scene.deploy(ready=0)
    reasons = scene.reasons()
    assert (reasons["Ready"], reasons["RouterReady"]) == ("RouterUnavailable", "RouterUnavailable")
    assert "Reconciling" not in reasons


def test_one_of_two_routers_is_enough() -> None:
    scene = Scene({"replicas": 2})
    scene.status = REACHED
    scene.deploy(ready=1)
    assert scene.reasons()["Ready"] == "AllReplicasReady"
    assert scene.conditions()["RouterReady"]["message"] == "1 of 2 router pods are ready."


@pytest.mark.parametrize("changes", [{"updated": 0}, {"total": 2}, {"caught_up": False}, {"spec_hash": "former"}])
def test_a_roll_out_of_the_router_is_not_done_until_every_pod_is_new(changes: dict[str, Any]) -> None:
    scene = Scene()
    scene.deploy(**changes)
    reasons = scene.reasons()
    assert (reasons["Ready"], reasons["Reconciling"]) == ("RouterStarting", "RouterStarting")
    assert (reasons["Available"], reasons["RouterReady"]) == ("MinimumReplicasAvailable", "RouterAvailable")
    assert scene.kstatus() == "InProgress"


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        ({"waiting": ("ErrImagePull", "example/envoy:9")}, "router.envoyImage"),
        ({"waiting": ("ErrImagePull", "v"), "component": "valkey"}, "router.sessionStore.managed.image"),
        ({"waiting": ("CreateContainerConfigError", "no such key")}, "no such key"),
        ({"waiting": ("CrashLoopBackOff", ""), "last_words": "bad bootstrap"}, "bad bootstrap"),
        ({"unschedulable": "0/2 nodes are available", "node": ""}, "0/2 nodes"),
    ],
)
def test_a_router_pod_in_trouble_is_named_with_the_cause(pod: dict[str, Any], words: str) -> None:
    scene = Scene()
    scene.deploy(updated=1, total=2, ready=1)
    scene.router_pods = [router_pod(ready=False, **pod)]
    conditions = scene.conditions()
    assert conditions["Ready"]["reason"] == conditions["Progressing"]["reason"] == "RouterStuck"
    assert "kimi-router-abc" in conditions["Ready"]["message"]
    assert words in conditions["Ready"]["message"]
    scene.deploy(ready=0)
    assert scene.reasons()["Ready"] == "RouterUnavailable"


@pytest.mark.parametrize("field", ["refused", "late"])
def test_the_deployments_own_words_are_passed_on(field: str) -> None:
    scene = Scene()
    scene.deploy(ready=0, updated=0, **{field: "pods are forbidden: exceeded quota"})
    assert "exceeded quota" in scene.conditions()["RouterReady"]["message"]
    assert scene.reasons()["Ready"] == "RouterUnavailable"


def test_trouble_of_engines_comes_first() -> None:
    scene = Scene()
    scene.status = REACHED
    scene.deploy(ready=0)
    observed = scene.observed()
    broken = replace(observed, pods=(observed_pod(0), observed_pod(1, ready=False, waiting=("ErrImagePull", "i"))))
    status = make_status(scene.pool, pools.size(scene.pool), broken, desired={"B200": 2}, blockers=(), now_s=0)
    assert status["conditions"][0]["reason"] == "ImagePullFailed"


def test_a_deployment_is_read_from_the_servers_json() -> None:
    manifest: Manifest = {
        "metadata": {
            "name": "kimi-router",
            "uid": "d",
            "generation": 3,
            "annotations": {names.ANNOTATION_SPEC_HASH: "a", names.ANNOTATION_RENDER_HASH: "b"},
            "ownerReferences": [{"uid": "pool", "controller": True}],
        },
        "status": {
            "observedGeneration": 2,
            "replicas": 3,
            "updatedReplicas": 1,
            "readyReplicas": 2,
            "conditions": [
                {"type": "Progressing", "status": "True", "message": "moving"},
                {"type": "ReplicaFailure", "status": "True", "message": "forbidden"},
            ],
        },
    }
    seen = ObservedDeployment.from_manifest(manifest)
    assert (seen.total, seen.updated, seen.ready, seen.caught_up) == (3, 1, 2, False)
    assert (seen.refused, seen.late, seen.owner_uid) == ("forbidden", "", "pool")
    manifest["status"] = {}
    assert ObservedDeployment.from_manifest(manifest).ready == 0
