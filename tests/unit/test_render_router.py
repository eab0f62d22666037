"""Manifests of a pool's router: who may do what, what restarts it, and that everything fits together."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglpool import render
from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.api.quantity import amount
from sglpool.render import router_deadlines
from sglpool.render.envoy.shape import RouterShape
from sglpool.render.quantities import canonical_amount
from sglpool.routing.pickerconfig import (
    AUTHZ_SOCKET,
    CONFIG_PATH,
    DRAINED_MARKER,
    LEAVING_MARKER,
    SHARED_DIR,
    parse_picker_config,
)
from support import pools

SECURED: pools.Json = {
    "auth": {"apiKeysSecret": {"name": "keys"}},
    "tls": {"secret": {"name": "certificate"}},
    "sessionStore": {
        "valkey": {
            "url": "valkeys://sessions:6379",
            "passwordSecret": {"name": "pass", "key": "word"},
            "caSecret": {"name": "authority", "key": "root.pem"},
        }
    },
}


def children(router: pools.Json | None = None, **spec: Any) -> dict[tuple[str, str], Manifest]:
    """The router's objects by kind and name, its ConfigMap among them."""
    pool = pools.pool({**spec, "router": {"enabled": True, **(router or {})}}, metadata={"uid": "pool"})
    sized = pools.size(pool)
    made = [*render.router_children(pool, sized), render.router_configmap(pool, sized)]
    return {(m["kind"], m["metadata"]["name"]): m for m in made}


def deployment(router: pools.Json | None = None, **spec: Any) -> Manifest:
    return children(router, **spec)["Deployment", "kimi-router"]


def pod(router: pools.Json | None = None, **spec: Any) -> Manifest:
    return deployment(router, **spec)["spec"]["template"]["spec"]


def containers(router: pools.Json | None = None, **spec: Any) -> dict[str, Manifest]:
    found = pod(router, **spec)
    return {c["name"]: c for c in [*found["initContainers"], *found["containers"]]}


def files(router: pools.Json | None = None, **spec: Any) -> dict[str, str]:
    [configmap] = [m for (kind, _), m in children(router, **spec).items() if kind == "ConfigMap"]
    return configmap["data"]


def chosen(router: pools.Json | None = None, **spec: Any) -> str:
    return deployment(router, **spec)["metadata"]["annotations"][names.ANNOTATION_SPEC_HASH]


# --- The objects


def test_a_router_is_these_objects_all_owned_by_the_pool() -> None:
    made = children()
    kinds = sorted(kind for kind, name in made if name == "kimi-router")
    assert kinds == [
        "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Role", "RoleBinding", "Service", "ServiceAccount",
    ]  # fmt: skip
    assert ("NetworkPolicy", "kimi-engine") in made
    assert len(made) == 9
    assert all(m["metadata"]["ownerReferences"][0]["uid"] == "pool" for m in made.values())
    assert all(names.is_router_child("kimi", kind, name) for kind, name in made if kind != "ConfigMap")


def test_a_pool_without_a_router_has_none_and_its_engines_as_endpoint() -> None:
    pool = pools.pool()
    assert render.router_children(pool, pools.size(pool)) == ()
    assert render.endpoint(pool) == "http://kimi-engine.serving.svc:30000/v1"


def test_the_endpoint_is_the_routers_service() -> None:
    plain, secured = (pools.pool({"router": {"enabled": True, **r}}) for r in ({}, SECURED))
    assert render.endpoint(plain) == "http://kimi-router.serving.svc:8000/v1"
    assert render.endpoint(secured) == "https://kimi-router.serving.svc:8000/v1"
    [port] = children()["Service", "kimi-router"]["spec"]["ports"]
    named = {p["name"]: p["containerPort"] for c in containers().values() for p in c.get("ports", [])}
    assert (port["port"], named[port["targetPort"]]) == (8000, 8000)


def test_selectors_select_the_router_and_never_an_engine() -> None:
    made = children()
    labels = deployment()["spec"]["template"]["metadata"]["labels"]
    selectors = [
        deployment()["spec"]["selector"]["matchLabels"],
        made["Service", "kimi-router"]["spec"]["selector"],
        made["PodDisruptionBudget", "kimi-router"]["spec"]["selector"]["matchLabels"],
        made["NetworkPolicy", "kimi-router"]["spec"]["podSelector"]["matchLabels"],
    ]
    engine = names.child_labels("kimi", "engine")
    for selector in selectors:
        assert selector.items() <= labels.items()
        assert not selector.items() <= engine.items()
    assert names.LABEL_GPU not in labels


def test_the_picker_may_watch_pods_and_nothing_else() -> None:
    made = children()
    assert made["Role", "kimi-router"]["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    ]
    [subject] = made["RoleBinding", "kimi-router"]["subjects"]
    assert (subject["kind"], subject["name"], subject["namespace"]) == ("ServiceAccount", "kimi-router", "serving")
    assert pod()["serviceAccountName"] == subject["name"]


def test_engines_answer_only_router_gate_operator_and_monitoring() -> None:
    [rule] = children()["NetworkPolicy", "kimi-engine"]["spec"]["ingress"]
    assert [p["port"] for p in rule["ports"]] == [names.ENGINE_PORT]
    peers = [peer["podSelector"]["matchLabels"] for peer in rule["from"]]
    assert all(peers), "an empty selector would let everybody in"
    assert {names.LABEL_POOL: "kimi", names.LABEL_COMPONENT: "router"} in peers
    assert dict(names.OPERATOR_LABELS) in peers


def test_the_api_is_open_and_the_pickers_port_is_not() -> None:
    open_to_all, guarded = children()["NetworkPolicy", "kimi-router"]["spec"]["ingress"]
    assert "from" not in open_to_all
    assert {p["port"] for p in open_to_all["ports"]} == {8000, 8001}
    assert {p["port"] for p in guarded["ports"]} == {9000}
    assert all(peer["podSelector"]["matchLabels"] for peer in guarded["from"])


# --- The pod


@pytest.mark.parametrize("kind", ["kimi-router", "kimi-valkey"])
def test_pods_fit_the_restricted_level(kind: str) -> None:
    spec = children({"sessionStore": {"managed": {}}})["Deployment", kind]["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True,
        }  # fmt: skip
        assert container["resources"]["requests"].keys() >= {"cpu", "memory"}
    assert not any({"hostPath", "hostNetwork"} & volume.keys() for volume in spec.get("volumes", []))


def test_each_secret_reaches_only_the_container_that_needs_it() -> None:
    mounts = {n: {m["name"] for m in c["volumeMounts"]} for n, c in containers(SECURED).items()}
    assert mounts["envoy"] == {"shared", "config", "tls"}
    assert mounts["picker"] == mounts["files"] == {"shared", "config", "token", "api-keys", "store", "store-ca"}
    volumes = {v["name"]: v for v in pod(SECURED)["volumes"]}
    assert volumes["tls"]["secret"]["secretName"] == "certificate"
    assert volumes["api-keys"]["secret"]["secretName"] == "keys"
    assert volumes["store"]["secret"] == {"secretName": "pass", "items": [{"key": "word", "path": "password"}]}
    assert volumes["store-ca"]["secret"] == {
        "secretName": "authority",
        "items": [{"key": "root.pem", "path": "ca.crt"}],
    }
    text = json.dumps(pod(SECURED)) + "".join(files(SECURED).values())
    assert "secretKeyRef" not in text


def test_what_the_picker_is_told_lies_where_it_looks() -> None:
    config = parse_picker_config(files(SECURED)["picker.json"])
    assert config.store_url == "rediss://sessions:6379"
    mounts = {m["name"]: m["mountPath"] for m in containers(SECURED)["picker"]["volumeMounts"]}
    envoy = {m["name"]: m["mountPath"] for m in containers(SECURED)["envoy"]["volumeMounts"]}
    assert config.store_password_file == f"{mounts['store']}/password"
    assert config.store_ca_file == f"{mounts['store-ca']}/ca.crt"
    assert config.api_keys_dir == mounts["api-keys"]
    assert config.tls_dir == envoy["tls"]
    assert config.shared_dir == mounts["shared"] == envoy["shared"] == SHARED_DIR
    assert f"{mounts['config']}/picker.json" == CONFIG_PATH
    shape = RouterShape.from_json(config.listener)
    assert shape.api_keys
    assert shape.config_dir == envoy["config"]
    arguments = containers(SECURED)["envoy"]["args"]
    path = arguments[arguments.index("--config-path") + 1]
    assert path.removeprefix(f"{envoy['config']}/") in files(SECURED)


def test_an_open_router_mounts_no_secret() -> None:
    config = parse_picker_config(files()["picker.json"])
    assert (config.api_keys_dir, config.tls_dir, config.store_url, config.store_password_file) == (None, None, "", None)
    assert not any("secret" in volume for volume in pod()["volumes"])


def test_nothing_ends_before_its_streams() -> None:
    for name in ("envoy", "picker"):
        command = " ".join(containers()[name]["lifecycle"]["preStop"]["exec"]["command"])
        assert f"{SHARED_DIR}/{DRAINED_MARKER}" in command
        assert (LEAVING_MARKER in command) == (name == "envoy")
    grace_s = pod()["terminationGracePeriodSeconds"]
    config = parse_picker_config(files()["picker.json"])
    assert grace_s > router_deadlines.LEAVE_S + config.drain_grace_s
    assert deployment()["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


def test_a_kill_by_liveness_never_waits_for_streams_nor_starts_the_way_out() -> None:
    assert "livenessProbe" not in containers()["envoy"], "its preStop tells the picker to leave"
    assert containers()["picker"]["livenessProbe"]["terminationGracePeriodSeconds"] < 5


def test_a_hanging_picker_leaves_the_pod_in_its_service() -> None:
    assert "readinessProbe" not in containers()["picker"]
    startup = containers()["picker"]["startupProbe"]
    assert startup["exec"]["command"][-1] == f"{SHARED_DIR}/{AUTHZ_SOCKET}", "a new pod waits for its picker"
    assert containers()["envoy"]["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "health"}


@pytest.mark.parametrize(
    ("resources", "threads", "cpu"),
    [
        ({}, "1", "1"),
        ({"requests": {"cpu": 2}}, "2", "2"),
        ({"requests": {"cpu": "500m"}, "limits": {"cpu": "2500m"}}, "3", "500m"),
        ({"limits": {"cpu": "250m"}}, "1", "250m"),
    ],
)
def test_envoy_has_as_many_threads_as_cores(resources: pools.Json, threads: str, cpu: str) -> None:
    envoy = containers({"resources": resources})["envoy"]
    assert envoy["args"][envoy["args"].index("--concurrency") + 1] == threads
    assert envoy["resources"]["requests"]["cpu"] == cpu


def test_routers_run_apart_and_rather_beside_the_gpus() -> None:
    affinity = pod()["affinity"]
    assert "requiredDuringSchedulingIgnoredDuringExecution" not in json.dumps(affinity)
    [term] = affinity["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    assert any(t["key"] == "nvidia.com/gpu" for t in pod()["tolerations"]), "a cluster may have nothing but GPU nodes"


def test_images_priority_and_credentials_are_the_users() -> None:
    changes = {"image": "example/sglpool:9", "envoyImage": "example/envoy:9"}
    template = {"imagePullSecrets": [{"name": "registry"}], "priorityClassName": "serving"}
    made = containers(changes, template=template)
    assert {n: c["image"] for n, c in made.items()} == {
        "files": "example/sglpool:9", "picker": "example/sglpool:9", "envoy": "example/envoy:9",
    }  # fmt: skip
    spec = pod(changes, template=template)
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["priorityClassName"] == "serving"


# --- What the policy is told


def test_the_pickers_limits_follow_the_engines() -> None:
    config = parse_picker_config(files(engine={"maxRunningRequests": 20, "maxQueuedRequests": 90})["picker.json"])
    assert (config.max_concurrent_requests, config.max_queued_requests) == (36, 90)
    assert parse_picker_config(files({"maxConcurrentRequests": 7})["picker.json"]).max_concurrent_requests == 7


def test_a_larger_gpu_weighs_more() -> None:
    weights = parse_picker_config(files()["picker.json"]).weights
    assert weights["B200"] == 1
    assert weights["B300"] > 1


def test_a_pool_that_cannot_be_sized_still_has_a_config() -> None:
    config = parse_picker_config(files(gpus=[{"type": "X999"}])["picker.json"])
    assert config.weights == {}
    assert config.max_concurrent_requests > 0


# --- What replaces router pods


@pytest.mark.parametrize(
    "spec",
    [
        {"replicas": 5},
        {"engine": {"image": "example/engine:9"}},
        {"rollout": {"drainTimeout": "20m"}},
        {"kvCache": {"hiCache": {"size": "300G"}}},
        {"router": {"resources": {"requests": {"cpu": "1000m"}}}, "base": {"resources": {"requests": {"cpu": 1}}}},
        {"router": {"replicas": 1}},
        {"replicas": None, "autoscaling": {"maxReplicas": 9}},
    ],
)
def test_what_changes_nothing_of_the_router_replaces_none(spec: pools.Json) -> None:
    changes = dict(spec)
    router, base = changes.pop("router", {}), changes.pop("base", {})
    assert chosen(router, **changes) == chosen(base)
    assert deployment(router, **changes)["spec"] == deployment(base)["spec"]


@pytest.mark.parametrize(
    "router",
    [
        {"replicas": 2},
        {"bodyLimit": "1Mi"},
        {"maxConcurrentRequests": 9},
        {"envoyImage": "example/envoy:9"},
        {"auth": {"apiKeysSecret": {"name": "keys"}}},
        {"tls": {"secret": {"name": "certificate"}}},
        {"sessionStore": {"managed": {}}},
        {"resources": {"limits": {"memory": "4Gi"}}},
    ],
)
def test_every_choice_of_the_router_replaces_its_pods(router: pools.Json) -> None:
    assert chosen(router) != chosen()


def test_a_changed_setting_is_another_configmap() -> None:
    first, second = files(), files({"bodyLimit": "1Mi"})
    assert first != second
    pool = pools.pool(pools.ROUTED)
    configmap = render.router_configmap(pool, pools.size(pool))
    assert configmap["immutable"] is True
    assert configmap["metadata"]["name"] == f"kimi-router-{render.content_hash(configmap['data'])}"


# --- The store


def test_a_managed_store_is_small_forgetful_and_closed() -> None:
    made = children({"sessionStore": {"managed": {"memory": "400Mi"}}})
    [container] = made["Deployment", "kimi-valkey"]["spec"]["template"]["spec"]["containers"]
    arguments = dict(zip(container["args"][::2], container["args"][1::2], strict=True))
    assert arguments["--save"] == ""
    assert arguments["--maxmemory-policy"] == "volatile-lru"
    assert int(arguments["--maxmemory"]) < 400 * 2**20
    assert container["resources"]["limits"]["memory"] == "400Mi"
    [rule] = made["NetworkPolicy", "kimi-valkey"]["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": names.component_selector("kimi", "router")}}]
    config = parse_picker_config(files({"sessionStore": {"managed": {}}})["picker.json"])
    assert config.store_url == "redis://kimi-valkey.serving.svc:6379"
    assert made["Service", "kimi-valkey"]["spec"]["ports"][0]["port"] == 6379


def test_a_store_of_the_users_is_not_rendered() -> None:
    assert not [name for _, name in children(SECURED) if "valkey" in name]


# --- Amounts


@pytest.mark.parametrize(
    ("value", "canonical"),
    [
        (2, "2"), ("1000m", "1"), ("0.5", "500m"), ("1500m", "1500m"), ("1024Mi", "1Gi"), ("1.5Gi", "1536Mi"),
        ("2000M", "2G"), ("0", "0"), ("0.5Ki", "512"), ("1000", "1k"), ("many", "many"),
    ],
)  # fmt: skip
def test_amounts_are_written_as_the_server_writes_them(value: int | str, canonical: str) -> None:
    assert canonical_amount(value) == canonical


@given(st.integers(0, 10**9), st.sampled_from(["", "m", "k", "M", "G", "Ki", "Mi", "Gi"]))
def test_a_canonical_amount_is_the_same_amount_and_stays(number: int, suffix: str) -> None:
    once = canonical_amount(f"{number}{suffix}")
    assert amount(once) == amount(f"{number}{suffix}")
    assert canonical_amount(once) == once


@pytest.mark.parametrize(("own", "expected"), [(None, "example/sglpool@sha256:abc"), ("mine:1", "mine:1")])
def test_an_installation_may_name_the_image_and_a_new_one_replaces_nothing(own: str | None, expected: str) -> None:
    router = {"enabled": True, **({"image": own} if own else {})}
    plain = pools.pool({"router": router}, metadata={"uid": "pool"})
    installed = replace(plain, router_image="example/sglpool@sha256:abc")
    sized = pools.size(plain)
    (made,) = [m for m in render.router_children(installed, sized) if m["kind"] == "Deployment"]
    spec = made["spec"]["template"]["spec"]
    images = {c["image"] for c in [*spec["initContainers"], *spec["containers"]] if c["command"][0] == "sglpool"}
    assert images == {expected}
    assert render.router_hash(installed, sized) == render.router_hash(plain, sized)
