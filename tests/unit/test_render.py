"""Manifests of a pool's engines: owners, names, scripts and deadlines, one behaviour a test."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sglpool import render
from sglpool.api import names
from sglpool.render import deadlines, paths
from support import pools
from support.rendering import all_manifests, engine, pod_spec, statefulset

LONGEST_POOL = "p" * names.MAX_POOL_NAME_LENGTH
LONGEST_TYPE = "B" + "0" * 10


# --- The StatefulSet and its two owners


def test_the_template_manager_never_names_replicas_or_partition() -> None:
    spec = statefulset()["spec"]
    assert "replicas" not in spec
    assert spec["updateStrategy"] == {"type": "RollingUpdate"}
    assert spec["podManagementPolicy"] == "Parallel"


def test_the_scale_manager_names_nothing_else() -> None:
    assert render.scale_manifest(name="kimi-b200", namespace="serving", replicas=3, partition=2) == {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "kimi-b200", "namespace": "serving"},
        "spec": {"replicas": 3, "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}},
    }


def test_children_are_owned_by_a_pool_of_the_cluster_and_by_nothing_in_a_file() -> None:
    owned = all_manifests(metadata={"uid": "0b1f", "generation": 3})
    for manifest in owned:
        (owner,) = manifest["metadata"]["ownerReferences"]
        assert owner["uid"] == "0b1f"
        assert owner["controller"] is owner["blockOwnerDeletion"] is True
    assert all("ownerReferences" not in manifest["metadata"] for manifest in all_manifests())


def test_nothing_of_the_pools_own_metadata_reaches_a_child() -> None:
    foreign = {"argocd.argoproj.io/instance": "apps", "app.kubernetes.io/instance": "apps", "helm.sh/chart": "x"}
    metadata = {"labels": foreign, "annotations": foreign | {"kubectl.kubernetes.io/last-applied-configuration": "{}"}}
    assert all_manifests(metadata=metadata) == all_manifests()
    labels = {key for m in all_manifests(metadata=metadata) for key in m["metadata"]["labels"]}
    assert "app.kubernetes.io/instance" not in labels


def test_selectors_select_the_pods() -> None:
    template = {"labels": {"team": "coding"}}
    manifest = statefulset({"template": template})
    labels = manifest["spec"]["template"]["metadata"]["labels"]
    assert manifest["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert labels["team"] == "coding"
    _, service, budget = render.shared_children(pools.pool())
    assert service["spec"]["selector"].items() <= labels.items()
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert manifest["spec"]["serviceName"] == service["metadata"]["name"]


def test_the_longest_names_fit_into_labels() -> None:
    # A pod carries <statefulset>-<10 characters of the revision> as a label value, of 63 characters at most.
    assert len(names.statefulset_name(LONGEST_POOL, LONGEST_TYPE)) + 1 + 10 <= 63
    for manifest in all_manifests({"gpus": [{"type": "B200"}]}, metadata={"name": LONGEST_POOL}):
        assert len(manifest["metadata"]["name"]) <= 63
        assert all(len(value) <= 63 for value in manifest["metadata"]["labels"].values())


def test_auto_hicache_is_pinned_and_an_explicit_size_is_not() -> None:
    auto = {"kvCache": {"hiCache": {"size": "Auto"}}}
    pinned = statefulset(auto)["metadata"]["annotations"][names.ANNOTATION_HICACHE_BYTES]
    assert int(pinned) > 0
    assert names.ANNOTATION_HICACHE_BYTES not in statefulset()["metadata"]["annotations"]
    pool = pools.pool(auto)
    again = pools.size(pool, hicache_bytes={"B200": int(pinned)})[0]
    assert render.statefulset(pool, again) == statefulset(auto)


def test_the_user_may_bring_an_account() -> None:
    changes = {"template": {"serviceAccountName": "serving"}}
    kinds = [m["kind"] for m in render.shared_children(pools.pool(changes))]
    assert kinds == ["Service", "PodDisruptionBudget"]
    assert pod_spec(changes)["serviceAccountName"] == "serving"
    account = render.shared_children(pools.pool())[0]
    assert account["metadata"]["name"] == pod_spec()["serviceAccountName"]
    assert account["automountServiceAccountToken"] is pod_spec()["automountServiceAccountToken"] is False


# --- Scripts


def test_scripts_are_immutable_and_named_by_content() -> None:
    pool = pools.pool()
    first, second = (render.launch_configmap(pool, sized) for sized in pools.size(pool))
    assert first["immutable"] is True
    assert first["metadata"]["name"] == "kimi-launch-" + render.content_hash(first["data"])
    # The compiled-kernel folders differ by architecture.
    assert first["metadata"]["name"] != second["metadata"]["name"]


def test_the_pod_mounts_its_scripts_and_runs_only_what_is_in_them() -> None:
    pool = pools.pool()
    sized = pools.size(pool)[0]
    configmap, spec = render.launch_configmap(pool, sized), pod_spec()
    scripts = next(volume for volume in spec["volumes"] if volume["name"] == "scripts")
    assert scripts["configMap"]["name"] == configmap["metadata"]["name"]
    container = spec["containers"][0]
    commands = [
        spec["initContainers"][0]["command"],
        container["command"],
        container["livenessProbe"]["exec"]["command"],
        container["lifecycle"]["preStop"]["exec"]["command"],
    ]
    for command in commands:
        (path,) = [word for word in command if word.startswith(paths.SCRIPTS_DIR)]
        assert path.removeprefix(f"{paths.SCRIPTS_DIR}/") in configmap["data"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, '"image": true'),
        ({"engine": {"warmup": {"image": False}}}, '"image": false'),
        ({"model": {"contextLength": 32_768}}, '"prompt_tokens": 16384'),
        ({"engine": {"warmup": {"prompts": 0}}}, '"prompts": 0'),
        ({"engine": {"startupTimeout": "2h"}}, '"ready_timeout_s": 7200'),
    ],
)
def test_settings_reach_the_scripts(changes: pools.Json, expected: str) -> None:
    pool = pools.pool(changes)
    assert expected in render.launch_configmap(pool, pools.size(pool)[0])["data"]["config.json"]


# --- Deadlines and probes


def test_deadlines_end_in_order() -> None:
    order = [
        deadlines.PRESTOP_S,
        deadlines.PRESTOP_S + deadlines.DRAIN_S,
        pod_spec()["terminationGracePeriodSeconds"],
    ]
    assert all(earlier < later for earlier, later in pairwise(order))
    assert str(deadlines.PRESTOP_S) in engine()["lifecycle"]["preStop"]["exec"]["command"]


@pytest.mark.parametrize(("timeout", "seconds"), [("10m", 600), ("3h", 10_800)])
def test_a_replica_may_take_its_whole_startup_timeout(timeout: str, seconds: int) -> None:
    probe = engine({"engine": {"startupTimeout": timeout}})["startupProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] > seconds
    assert probe["exec"]["command"] == ["test", "-f", paths.WARM_MARKER]


def test_liveness_never_asks_health_and_readiness_does_not_flap() -> None:
    container = engine()
    assert "httpGet" not in container["livenessProbe"]
    assert container["livenessProbe"]["terminationGracePeriodSeconds"] == deadlines.LIVENESS_KILL_GRACE_S
    readiness = container["readinessProbe"]
    assert readiness["httpGet"] == {"path": "/ready", "port": "http"}
    assert readiness["timeoutSeconds"] >= 5


def test_no_null_is_sent() -> None:
    def walk(value: object) -> None:
        assert value is not None
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            walk(inner)

    walk(all_manifests())
