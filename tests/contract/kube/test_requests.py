"""What the Kubernetes client sends, and what it makes of good answers."""

import pytest

from contract.kube.bad_server import CONFIGMAP, POD, ok, status
from sglpool.kube.resources import CLUSTER_ROLES, NODES, PODS, POOLS, STATEFULSETS, resource_for


async def test_apply_is_a_forced_strict_server_side_apply_with_a_json_body(server, opened):
    server.script = [ok(CONFIGMAP)]
    assert await opened.kube.apply(CONFIGMAP, field_manager="sglpool") == CONFIGMAP
    (seen,) = server.seen
    assert (seen.method, seen.path) == ("PATCH", "/api/v1/namespaces/prod/configmaps/scripts")
    assert seen.query == {"fieldManager": "sglpool", "fieldValidation": "Strict", "force": "true"}
    assert seen.headers["Content-Type"] == "application/apply-patch+yaml"
    assert seen.headers["Authorization"] == "Bearer secret-token"
    assert seen.headers["User-Agent"].startswith("sglpool/")
    assert seen.body == CONFIGMAP


async def test_apply_can_be_polite_and_dry(server, opened):
    server.script = [ok(CONFIGMAP)]
    await opened.kube.apply(CONFIGMAP, field_manager="sglpool-scale", force=False, dry_run=True)
    assert server.seen[0].query == {
        "fieldManager": "sglpool-scale",
        "fieldValidation": "Strict",
        "dryRun": "All",
    }


async def test_patch_status_is_a_merge_patch_guarded_by_the_version(server, opened):
    server.script = [ok({})]
    await opened.kube.patch_status(
        POOLS, namespace="prod", name="kimi", status={"conditions": [], "old": None}, resource_version="42"
    )
    (seen,) = server.seen
    assert (seen.method, seen.path) == (
        "PATCH",
        "/apis/sglpool.io/v1alpha1/namespaces/prod/inferencepools/kimi/status",
    )
    assert seen.headers["Content-Type"] == "application/merge-patch+json"
    assert seen.body == {
        "metadata": {"resourceVersion": "42"},
        "status": {"conditions": [], "old": None},
    }


async def test_delete_sends_its_preconditions_and_propagation(server, opened):
    server.script = [ok({})]
    assert await opened.kube.delete(
        STATEFULSETS,
        namespace="prod",
        name="kimi-b200",
        uid="u-1",
        resource_version="7",
        propagation="Orphan",
        grace_period_s=0,
    )
    (seen,) = server.seen
    assert (seen.method, seen.path) == ("DELETE", "/apis/apps/v1/namespaces/prod/statefulsets/kimi-b200")
    assert seen.body["propagationPolicy"] == "Orphan"
    assert seen.body["preconditions"] == {"uid": "u-1", "resourceVersion": "7"}
    assert seen.body["gracePeriodSeconds"] == 0


async def test_deleting_what_is_gone_is_false_and_not_an_error(server, opened):
    server.script = [status(404, reason="NotFound")]
    assert await opened.kube.delete(PODS, namespace="prod", name="kimi-b200-0") is False


async def test_list_reads_all_pages_and_gives_every_item_its_type(server, opened):
    server.script = [
        ok({"metadata": {"continue": "next"}, "items": [{"metadata": {"name": "a"}}]}),
        ok({"metadata": {}, "items": [{"metadata": {"name": "b"}}]}),
    ]
    pods = await opened.kube.list(
        PODS,
        namespace="prod",
        labels={"sglpool.io/pool": "kimi"},
        label_selector="tier!=test",
        field_selector="status.phase=Running",
    )
    assert [pod["metadata"]["name"] for pod in pods] == ["a", "b"]
    assert {(pod["apiVersion"], pod["kind"]) for pod in pods} == {("v1", "Pod")}
    first, second = server.seen
    assert first.query == {
        "labelSelector": "sglpool.io/pool=kimi,tier!=test",
        "fieldSelector": "status.phase=Running",
        "limit": "500",
    }
    assert second.query == {**first.query, "continue": "next"}


async def test_a_list_whose_pages_expire_is_read_again_in_one_piece(server, opened):
    server.script = [
        ok({"metadata": {"continue": "stale"}, "items": [POD]}),
        status(410, "the provided continue parameter is too old", reason="Expired"),
        ok({"metadata": {}, "items": [POD, POD, POD]}),
    ]
    assert len(await opened.kube.list(PODS, namespace=None)) == 3
    assert [(seen.path, seen.query) for seen in server.seen][-1] == ("/api/v1/pods", {})


async def test_a_list_from_the_cache_asks_for_any_version(server, opened):
    server.script = [ok({"metadata": {}, "items": None})]
    assert await opened.kube.list(NODES, namespace=None, from_cache=True) == []
    assert server.seen[0].query == {"resourceVersion": "0"}


async def test_names_are_quoted_into_the_path(server, opened):
    server.script = [ok({})]
    await opened.kube.get(CLUSTER_ROLES, namespace=None, name="system:node/../x")
    assert server.seen[0].path.endswith("/clusterroles/system:node/../x")
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda kube: kube.get(PODS, namespace="prod", name=""), "needs a name"),
        (lambda kube: kube.get(PODS, namespace=None, name="a"), "needs a name and a namespace"),
        (lambda kube: kube.get(NODES, namespace="prod", name="n"), "cluster-scoped"),
        (lambda kube: kube.create({"apiVersion": "v1", "kind": "Secret"}), "not a type"),
        (
            lambda kube: kube.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}),
            "namespace is missing",
        ),
        (
            lambda kube: kube.apply(
                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "prod"}},
                field_manager="m",
            ),
            "needs a name",
        ),
    ],
)
async def test_a_call_that_cannot_be_meant_is_refused_before_anything_is_sent(server, opened, call, words):
    with pytest.raises(ValueError, match=words):
        await call(opened.kube)
    assert server.seen == []


def test_a_manifest_finds_its_resource_type():
    assert resource_for({"apiVersion": "apps/v1", "kind": "StatefulSet"}) is STATEFULSETS
    assert resource_for({"apiVersion": "sglpool.io/v1alpha1", "kind": "InferencePool"}) is POOLS
