"""The Kubernetes client, Events and credentials on a real API server."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from kubernetes.aio.config import incluster_config

from sglpool.kube import Conflict, EventRecorder, Forbidden, Invalid, KubeClient, NotFound
from sglpool.kube.resources import (
    ALL_RESOURCES,
    CONFIGMAPS,
    EVENTS,
    NAMESPACES,
    POOLS,
    SERVICE_ACCOUNTS,
    STATEFULSETS,
    Resource,
)
from sglpool.kube.transport import Request, open_transport

pytestmark = pytest.mark.controlplane


@pytest.fixture
async def kube(kubeconfig: str) -> AsyncIterator[KubeClient]:
    async with KubeClient.connect(str(kubeconfig)) as client:
        yield client


def configmap(namespace: str, name: str = "scripts", **data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"namespace": namespace, "name": name, "labels": {"sglpool.io/pool": "kimi"}},
        "data": data,
    }


def statefulset(namespace: str, **spec: Any) -> dict[str, Any]:
    labels = {"app": "kimi"}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"namespace": namespace, "name": "kimi-b200"},
        "spec": {
            "serviceName": "kimi",
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "engine", "image": "engine:1"}]},
            },
            **spec,
        },
    }


async def test_apply_owns_its_fields_and_drops_them_with_the_next_apply(kube, namespace):
    first = await kube.apply(configmap(namespace, a="1", b="2"), field_manager="sglpool")
    same = await kube.apply(configmap(namespace, a="1", b="2"), field_manager="sglpool")
    assert same["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    await kube.apply(configmap(namespace, a="1"), field_manager="sglpool")
    found = await kube.get(CONFIGMAPS, namespace=namespace, name="scripts")
    assert found["data"] == {"a": "1"}
    assert (found["apiVersion"], found["kind"]) == ("v1", "ConfigMap")


async def test_two_managers_share_a_statefulset_and_a_polite_third_is_refused(kube, namespace):
    await kube.apply(statefulset(namespace, replicas=0), field_manager="sglpool")
    scale = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"namespace": namespace, "name": "kimi-b200"},
        "spec": {"replicas": 0},
    }
    await kube.apply(scale, field_manager="sglpool-scale")
    await kube.apply(statefulset(namespace), field_manager="sglpool")
    found = await kube.get(STATEFULSETS, namespace=namespace, name="kimi-b200")
    assert found["spec"]["replicas"] == 0

    scale["spec"] = {"replicas": 3}
    with pytest.raises(Conflict, match="sglpool-scale"):
        await kube.apply(scale, field_manager="somebody", force=False)


@pytest.mark.parametrize("make", [configmap, statefulset])
async def test_apply_can_be_told_to_create_and_never_to_change(kube, namespace, make):
    manifest = make(namespace)
    created = await kube.apply(manifest, field_manager="sglpool", only_create=True)
    labelled = {**manifest, "metadata": {**manifest["metadata"], "labels": {"ours": "now"}}}
    with pytest.raises(Conflict):
        await kube.apply(labelled, field_manager="sglpool", only_create=True)
    assert "ours" not in (await kube.apply(manifest, field_manager="another"))["metadata"].get("labels", {})
    # What it created is owned as by any apply: a field that the next one leaves out goes away.
    assert [(m["manager"], m["operation"]) for m in created["metadata"]["managedFields"]] == [("sglpool", "Apply")]


async def test_a_dry_run_answers_and_changes_nothing(kube, namespace):
    answer = await kube.apply(configmap(namespace, a="1"), field_manager="sglpool", dry_run=True)
    assert answer["metadata"]["uid"]
    with pytest.raises(NotFound, match=f"Cannot get ConfigMap {namespace}/scripts"):
        await kube.get(CONFIGMAPS, namespace=namespace, name="scripts")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"replcas": 1}, "spec.replcas"),
        ({"replicas": -1}, "spec.replicas"),
        ({"replicas": "three"}, "spec.replicas"),
        ({"serviceName": {}}, "spec.serviceName"),
        ({"template": {"spec": {"containers": [{"name": "a"}, {"name": "a"}]}}}, "spec.template.spec.containers"),
    ],
)
async def test_a_bad_manifest_is_invalid_and_names_the_field(kube, namespace, spec, words):
    with pytest.raises(Invalid) as caught:
        await kube.apply(statefulset(namespace, **spec), field_manager="sglpool")
    assert words in str(caught.value)


async def test_a_change_of_an_immutable_field_is_invalid(kube, namespace):
    await kube.apply(statefulset(namespace, replicas=0), field_manager="sglpool")
    with pytest.raises(Invalid, match=r"immutable|forbidden") as caught:
        await kube.apply(statefulset(namespace, replicas=0, podManagementPolicy="Parallel"), field_manager="sglpool")
    assert any(cause.startswith("spec") for cause in caught.value.causes)


async def test_create_refuses_unknown_fields(kube, namespace):
    with pytest.raises(Invalid, match='unknown field "dta"'):
        await kube.create({**configmap(namespace), "dta": {}})


async def test_a_missing_namespace_is_not_found(kube):
    with pytest.raises(NotFound, match=r'namespaces "no-such-namespace" not found'):
        await kube.apply(configmap("no-such-namespace"), field_manager="sglpool")


async def test_a_namespace_on_its_way_out_says_so(kube, namespace):
    pinned = configmap(namespace, "pinned")
    pinned["metadata"]["finalizers"] = ["sglpool.io/test"]
    await kube.create(pinned)
    await kube.delete(NAMESPACES, namespace=None, name=namespace)
    try:
        with pytest.raises(Forbidden) as caught:
            await kube.apply(configmap(namespace, "late"), field_manager="sglpool")
        assert caught.value.namespace_terminating
    finally:
        await kube.merge_patch(CONFIGMAPS, namespace=namespace, name="pinned", patch={"metadata": {"finalizers": None}})


async def test_create_twice_is_a_conflict(kube, namespace):
    await kube.create(configmap(namespace))
    with pytest.raises(Conflict) as caught:
        await kube.create(configmap(namespace))
    assert caught.value.already_exists


async def test_replace_fails_when_somebody_was_faster(kube, namespace):
    old = await kube.create(configmap(namespace, a="1"))
    await kube.replace({**old, "data": {"a": "2"}})
    with pytest.raises(Conflict):
        await kube.replace({**old, "data": {"a": "3"}})


async def test_delete_hits_only_the_incarnation_it_means(kube, namespace):
    made = await kube.create(configmap(namespace))
    where = {"namespace": namespace, "name": "scripts"}
    with pytest.raises(Conflict, match="UID"):
        await kube.delete(CONFIGMAPS, **where, uid="00000000-0000-0000-0000-000000000000")
    assert await kube.delete(CONFIGMAPS, **where, uid=made["metadata"]["uid"]) is True
    assert await kube.delete(CONFIGMAPS, **where) is False


async def test_list_selects_by_labels_pages_through_and_names_types(kube, namespace, monkeypatch):
    monkeypatch.setattr("sglpool.kube.client._PAGE_SIZE", 3)
    for i in range(8):
        await kube.create(configmap(namespace, f"c{i}", i=str(i)))
    await kube.create({**configmap(namespace, "other"), "metadata": {"namespace": namespace, "name": "other"}})
    for from_cache in (False, True):
        found = await kube.list(
            CONFIGMAPS, namespace=namespace, labels={"sglpool.io/pool": "kimi"}, from_cache=from_cache
        )
        assert {item["metadata"]["name"] for item in found} == {f"c{i}" for i in range(8)}
        assert {(item["apiVersion"], item["kind"]) for item in found} == {("v1", "ConfigMap")}
    one = await kube.list(CONFIGMAPS, namespace=namespace, field_selector="metadata.name=c5")
    assert [item["data"] for item in one] == [{"i": "5"}]


async def test_status_patch_replaces_the_list_and_leaves_the_spec(kube, namespace):
    made = await kube.apply(statefulset(namespace, replicas=0), field_manager="sglpool")
    where = {"namespace": namespace, "name": "kimi-b200"}
    for conditions in (["Ready", "Stalled"], ["Available"]):
        patched = await kube.patch_status(
            STATEFULSETS,
            **where,
            status={"replicas": 0, "conditions": [{"type": t, "status": "True"} for t in conditions]},
        )
    assert [c["type"] for c in patched["status"]["conditions"]] == ["Available"]
    assert patched["metadata"]["generation"] == made["metadata"]["generation"]
    with pytest.raises(Conflict):
        await kube.patch_status(STATEFULSETS, **where, status={"replicas": 0}, resource_version="1")
    with pytest.raises(Invalid, match=r'unknown field "status.conditons"'):
        await kube.patch_status(STATEFULSETS, **where, status={"conditons": []})


async def test_every_resource_type_of_the_table_is_served(kube):
    for resource in ALL_RESOURCES:
        if resource is not POOLS:  # its definition need not be installed here
            await kube.list(resource, namespace=None, field_selector="metadata.name=none")


async def test_an_event_shows_at_its_object_once(kube, namespace):
    regarding = await kube.create(configmap(namespace))
    async with EventRecorder(kube, instance="operator-0") as events:
        for _ in range(5):
            events.record(regarding, reason="Scaled", message="2 → 3 replicas", action="Scale", event_type="Warning")
    (event,) = await kube.list(EVENTS, namespace=namespace, field_selector="involvedObject.name=scripts,reason=Scaled")
    assert event["message"] == "2 → 3 replicas"
    assert event["type"] == "Warning"
    assert event["involvedObject"]["uid"] == regarding["metadata"]["uid"]
    assert (event["reportingComponent"], event["reportingInstance"]) == ("sglpool-operator", "operator-0")
    assert event["lastTimestamp"]


async def test_the_longest_event_is_accepted(kube, namespace):
    regarding = await kube.create(configmap(namespace, "n" * 253))
    async with EventRecorder(kube, instance="i" * 300) as events:
        events.record(regarding, reason="R" * 300, message="m" * 3000, action="A" * 300)
    assert (events.counts.posted, events.counts.failed) == (1, 0)


def read_config(kubeconfig: str) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(Path(kubeconfig).read_text())
    return config


SELF = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False)


async def test_in_a_pod_the_rotated_token_is_noticed(kubeconfig, kube, namespace, tmp_path, monkeypatch):
    """Two ServiceAccounts stand for two generations of the token: the server tells which one it saw."""
    cluster = read_config(kubeconfig)["clusters"][0]["cluster"]
    ca, token = tmp_path / "ca.crt", tmp_path / "token"
    if "certificate-authority-data" in cluster:
        ca.write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    else:
        ca.write_bytes((Path(kubeconfig).parent / cluster["certificate-authority"]).read_bytes())
    url = urlsplit(cluster["server"])
    clock = SimpleNamespace(now=incluster_config.datetime.datetime.now())
    fake_datetime = SimpleNamespace(
        datetime=SimpleNamespace(now=lambda: clock.now), timedelta=incluster_config.datetime.timedelta
    )
    monkeypatch.setattr(incluster_config, "datetime", fake_datetime)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(ca))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", url.hostname or "")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(url.port))

    token.write_text(await token_of(kubeconfig, kube, namespace, "before") + "\n")
    async with open_transport(None) as transport:

        async def who_am_i() -> str:
            body = {"apiVersion": SELF.api_version, "kind": SELF.kind}
            answer = await transport.send(
                Request(verb="ask", method="POST", resource=SELF, path=SELF.path(), body=body, timeout_s=10)
            )
            return answer["status"]["userInfo"]["username"]

        assert await who_am_i() == f"system:serviceaccount:{namespace}:before"
        token.write_text(await token_of(kubeconfig, kube, namespace, "after"))
        assert await who_am_i() == f"system:serviceaccount:{namespace}:before"
        clock.now += incluster_config.datetime.timedelta(seconds=61)
        assert await who_am_i() == f"system:serviceaccount:{namespace}:after"

        token.write_text("not-a-token")
        clock.now += incluster_config.datetime.timedelta(seconds=61)
        with pytest.raises(Forbidden, match="401"):
            await who_am_i()


async def test_the_servers_certificate_is_verified(kubeconfig, tmp_path):
    config = read_config(kubeconfig)
    cluster = config["clusters"][0]["cluster"]
    cluster.pop("certificate-authority-data", None)
    # A CA that did not sign the server's certificate: any of the system's.
    system_cas = ssl.create_default_context().get_ca_certs(binary_form=True)
    other_ca = tmp_path / "other.crt"
    other_ca.write_text(ssl.DER_cert_to_PEM_cert(system_cas[0]))
    cluster["certificate-authority"] = str(other_ca)
    broken = tmp_path / "config"
    broken.write_text(yaml.safe_dump(config))
    async with KubeClient.connect(str(broken)) as kube:
        with pytest.raises(Exception, match="certificate"):
            await kube.list(NAMESPACES, namespace=None, timeout_s=5)


async def token_of(kubeconfig: str, kube: KubeClient, namespace: str, name: str) -> str:
    await kube.create(
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"namespace": namespace, "name": name},
        }
    )
    async with open_transport(str(kubeconfig)) as transport:
        answer = await transport.send(
            Request(
                verb="create a token for",
                method="POST",
                resource=SERVICE_ACCOUNTS,
                namespace=namespace,
                name=name,
                path=SERVICE_ACCOUNTS.path(namespace, name, "token"),
                body={"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
                timeout_s=10,
            )
        )
    token: str = answer["status"]["token"]
    return token


async def test_many_requests_at_once_share_the_connections(kube, namespace):
    made = await asyncio.gather(
        *(kube.apply(configmap(namespace, f"c{i}"), field_manager="sglpool") for i in range(200))
    )
    assert len({item["metadata"]["uid"] for item in made}) == 200
