"""The Kubernetes client against a server that answers badly on purpose: what callers see, and what is sent."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml
from aiohttp import web

from sglpool.kube import (
    Conflict,
    Forbidden,
    Invalid,
    KubeClient,
    KubeConfigError,
    KubeError,
    NotFound,
    Transient,
)
from sglpool.kube.resources import (
    CLUSTER_ROLES,
    CONFIGMAPS,
    NODES,
    PODS,
    POOLS,
    STATEFULSETS,
    resource_for,
)

CONFIGMAP = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "scripts", "namespace": "prod"},
    "data": {"launch.sh": "exec sglang"},
}
POD = {"metadata": {"name": "p"}}


@dataclass
class Seen:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class BadServer:
    """Answers from a script; the last entry repeats. An entry is a response, or a function that makes one."""

    url: str = ""
    script: list[Any] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        self.seen.append(
            Seen(
                request.method,
                request.path,
                dict(request.query),
                dict(request.headers),
                json.loads(text) if text else None,
            )
        )
        entry = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        return await entry(request)


Answer = Callable[[web.Request], Any]


def ok(body: Any) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(body)

    return answer


def status(code: int, message: str = "no", *, reason: str = "", headers: Any = None, **details: Any) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        body = {"kind": "Status", "code": code, "message": message, "reason": reason, "details": details}
        return web.json_response(body, status=code, headers=headers)

    return answer


def text(code: int, body: str) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=code, text=body)

    return answer


async def reset(request: web.Request) -> web.Response:
    """Drops the connection without a word."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def half(request: web.Request) -> web.StreamResponse:
    """Promises more bytes than it sends."""
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"kind": "Po')
    assert request.transport is not None
    request.transport.abort()
    return response


async def silent(_: web.Request) -> web.Response:
    await asyncio.Event().wait()
    return web.Response()


@pytest.fixture
async def server() -> AsyncIterator[BadServer]:
    bad = BadServer()
    app = web.Application()
    app.router.add_route("*", "/{any:.*}", bad.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    bad.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield bad
    await runner.cleanup()


def kubeconfig_for(path: Any, url: str, **user: Any) -> str:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": user or {"token": "secret-token"}}],
    }
    path.write_text(yaml.safe_dump(config))
    return str(path)


@dataclass
class Opened:
    kube: KubeClient
    pauses: list[float]
    requests: list[tuple[str, str, int]]


@pytest.fixture
async def opened(server: BadServer, tmp_path: Any) -> AsyncIterator[Opened]:
    pauses: list[float] = []
    requests: list[tuple[str, str, int]] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    def on_request(verb: str, resource: Any, code: int, seconds: float) -> None:
        assert seconds >= 0
        requests.append((verb, resource.plural, code))

    config = kubeconfig_for(tmp_path / "config", server.url)
    async with KubeClient.connect(config, on_request=on_request, sleep=sleep) as kube:
        yield Opened(kube, pauses, requests)


# What is sent


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


# Errors


@pytest.mark.parametrize(
    ("code", "error_class"),
    [
        (400, Invalid),
        (401, Forbidden),
        (403, Forbidden),
        (404, NotFound),
        (405, Invalid),
        (409, Conflict),
        (410, Transient),
        (413, Invalid),
        (422, Invalid),
        (500, Transient),
        (503, Transient),
        (504, Transient),
    ],
)
async def test_an_error_names_verb_object_and_the_servers_words(server, opened, code, error_class):
    server.script = [status(code, "the server's words", reason="SomeReason")]
    with pytest.raises(KubeError) as caught:
        await opened.kube.patch_status(POOLS, namespace="prod", name="kimi", status={})
    assert type(caught.value) is error_class
    assert str(caught.value) == (
        f"Cannot patch the status of InferencePool prod/kimi: the server's words ({code} SomeReason)"
    )
    assert caught.value.key == "prod/kimi"
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("namespace", "words"),
    [("prod", "Cannot list Pod objects in namespace prod: "), (None, "Cannot list Pod objects of the cluster: ")],
)
async def test_an_error_of_a_list_says_where(server, opened, namespace, words):
    server.script = [status(403, 'pods is forbidden: User "x" cannot list resource "pods"')]
    with pytest.raises(Forbidden) as caught:
        await opened.kube.list(PODS, namespace=namespace)
    assert str(caught.value).startswith(words)


async def test_an_invalid_manifest_brings_its_causes_in_short(server, opened):
    causes = [{"field": f"spec.f{i}", "message": "bad " * 100} for i in range(9)]
    server.script = [status(422, "x" * 5000, reason="Invalid", causes=causes)]
    with pytest.raises(Invalid) as caught:
        await opened.kube.create(CONFIGMAP)
    assert len(caught.value.causes) == 5
    assert caught.value.causes[0].startswith("spec.f0: bad bad")
    assert all(len(cause) <= 200 for cause in caught.value.causes)
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (text(502, "<html>Bad\n  Gateway</html>"), "<html>Bad Gateway</html> (502)"),
        (text(503, ""), "no explanation (503)"),
        (text(500, '["a list"]'), '["a list"] (500)'),
        (text(302, "moved"), "moved (302)"),
        (text(200, "<html>a login page</html>"), "not JSON: b'<html>a login page</html>'"),
    ],
)
async def test_what_a_proxy_says_instead_is_transient_and_shown(server, opened, answer, words):
    server.script = [answer]
    with pytest.raises(Transient) as caught:
        await opened.kube.create(CONFIGMAP)
    assert words in str(caught.value)


async def test_conflict_tells_an_existing_object_from_a_changed_one(server, opened):
    server.script = [status(409, reason="AlreadyExists"), status(409, reason="Conflict")]
    with pytest.raises(Conflict) as exists:
        await opened.kube.create(CONFIGMAP)
    with pytest.raises(Conflict) as changed:
        await opened.kube.replace(CONFIGMAP)
    assert (exists.value.already_exists, changed.value.already_exists) == (True, False)


# Retries and deadlines

READS: list[Any] = [
    pytest.param(lambda kube: kube.get(PODS, namespace="prod", name="a"), id="get"),
    pytest.param(lambda kube: kube.list(PODS, namespace="prod"), id="list"),
    pytest.param(lambda kube: kube.apply(CONFIGMAP, field_manager="m"), id="apply"),
]
WRITES: list[Any] = [
    pytest.param(lambda kube: kube.create(CONFIGMAP), id="create"),
    pytest.param(lambda kube: kube.replace(CONFIGMAP), id="replace"),
    pytest.param(lambda kube: kube.patch_status(POOLS, namespace="p", name="a", status={}), id="status"),
    pytest.param(lambda kube: kube.delete(PODS, namespace="prod", name="a"), id="delete"),
]


@pytest.mark.parametrize("call", READS)
@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param(reset, id="reset"),
        pytest.param(half, id="half-an-answer"),
        pytest.param(status(429, headers={"Retry-After": "1"}), id="429"),
    ],
)
async def test_what_is_safe_to_repeat_survives_two_hiccups(server, opened, call, trouble):
    server.script = [trouble, trouble, ok({"metadata": {}, "items": []})]
    await call(opened.kube)
    assert len(server.seen) == 3
    # aiohttp itself repeats a GET at once when its connection breaks.
    assert len(opened.pauses) in (1, 2)
    assert all(0 < pause <= 1.25 for pause in opened.pauses)


async def test_a_connection_that_always_breaks_is_given_up(server, opened):
    server.script = [reset]
    with pytest.raises(Transient, match="Cannot get Pod prod/a: the connection to the API server failed"):
        await opened.kube.get(PODS, namespace="prod", name="a")
    assert opened.requests == [("get", "pods", 0)] * 3


@pytest.mark.parametrize("call", READS)
async def test_the_third_hiccup_is_the_callers(server, opened, call):
    server.script = [status(429, "slow down", headers={"Retry-After": "3"})]
    with pytest.raises(Transient) as caught:
        await call(opened.kube)
    assert caught.value.retry_after_s == 3
    assert len(server.seen) == 3
    assert all(3 <= pause <= 3.75 for pause in opened.pauses)
    assert [code for _, _, code in opened.requests] == [429, 429, 429]


@pytest.mark.parametrize("call", WRITES)
async def test_what_is_not_safe_to_repeat_is_sent_once(server, opened, call):
    server.script = [status(429)]
    with pytest.raises(Transient):
        await call(opened.kube)
    assert len(server.seen) == 1
    assert opened.pauses == []


@pytest.mark.parametrize("call", [WRITES[0], WRITES[2]])
async def test_a_write_whose_answer_is_lost_is_not_sent_again(server, opened, call):
    server.script = [reset]
    with pytest.raises(Transient):
        await call(opened.kube)
    assert len(server.seen) == 1


async def test_a_long_retry_after_is_left_to_the_caller(server, opened):
    server.script = [status(429, headers={"Retry-After": "60"})]
    with pytest.raises(Transient) as caught:
        await opened.kube.get(PODS, namespace="prod", name="a")
    assert caught.value.retry_after_s == 60
    assert len(server.seen) == 1


async def test_a_retry_after_beyond_the_deadline_is_not_waited_for(server, opened):
    server.script = [status(429, headers={"Retry-After": "5"})]
    with pytest.raises(Transient):
        await opened.kube.get(PODS, namespace="prod", name="a", timeout_s=2)
    assert opened.pauses == []


async def test_a_500_is_not_repeated_blindly(server, opened):
    server.script = [status(500)]
    with pytest.raises(Transient):
        await opened.kube.apply(CONFIGMAP, field_manager="m")
    assert len(server.seen) == 1


async def test_a_silent_server_ends_in_a_timeout_that_says_so(server, opened):
    server.script = [silent]
    with pytest.raises(Transient, match=r"Cannot get Pod prod/a: no answer from the API server within 0.2 s"):
        await opened.kube.get(PODS, namespace="prod", name="a", timeout_s=0.2)
    assert opened.requests == [("get", "pods", 0)]


async def test_an_unreachable_server_is_transient_and_named(tmp_path, unused_tcp_port):
    config = kubeconfig_for(tmp_path / "config", f"http://127.0.0.1:{unused_tcp_port}")
    async with KubeClient.connect(config) as kube:
        with pytest.raises(Transient, match=f"connection to the API server failed.*{unused_tcp_port}"):
            await kube.get(PODS, namespace="prod", name="a", timeout_s=5)


async def test_every_attempt_reaches_the_metrics_hook(server, opened):
    server.script = [status(429), ok({}), status(404)]
    await opened.kube.get(PODS, namespace="prod", name="a")
    await opened.kube.delete(CONFIGMAPS, namespace="prod", name="a")
    assert opened.requests == [("get", "pods", 429), ("get", "pods", 200), ("delete", "configmaps", 404)]


# Credentials


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "absent"),
        ("{not yaml", "config"),
        ("apiVersion: v1\nkind: Config\n", "current-context"),
    ],
)
async def test_a_bad_kubeconfig_is_named_with_what_to_do(tmp_path, content, words):
    path = tmp_path / ("absent" if content is None else "config")
    if content is not None:
        path.write_text(content)
    with pytest.raises(KubeConfigError) as caught:
        async with KubeClient.connect(str(path)):
            pass
    assert str(path) in str(caught.value)
    assert words in str(caught.value)
    assert "--kubeconfig" in str(caught.value)


async def test_kubeconfig_comes_from_the_environment_outside_a_pod(server, tmp_path, monkeypatch):
    server.script = [ok({})]
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", kubeconfig_for(tmp_path / "config", server.url))
    async with KubeClient.connect() as kube:
        await kube.get(PODS, namespace="prod", name="a")
    assert server.seen[0].headers["Authorization"] == "Bearer secret-token"


async def test_a_token_from_an_exec_plugin_is_sent(server, tmp_path):
    server.script = [ok({})]
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "from-plugin"},
    }
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "echo",
        "args": [json.dumps(credential)],
        "interactiveMode": "Never",
    }
    async with KubeClient.connect(kubeconfig_for(tmp_path / "config", server.url, exec=plugin)) as kube:
        await kube.get(PODS, namespace="prod", name="a")
    assert server.seen[0].headers["Authorization"] == "Bearer from-plugin"


async def test_a_proxy_from_the_environment_is_used_and_no_proxy_obeyed(server, tmp_path, monkeypatch):
    server.script = [ok({})]
    monkeypatch.setenv("HTTP_PROXY", server.url)
    config = kubeconfig_for(tmp_path / "config", "http://api.cluster.example:6443")
    async with KubeClient.connect(config) as kube:
        await kube.get(PODS, namespace="prod", name="a")
    assert server.seen[0].headers["Host"] == "api.cluster.example:6443"

    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    async with KubeClient.connect(kubeconfig_for(tmp_path / "config", server.url)) as kube:
        await kube.get(PODS, namespace="prod", name="a", timeout_s=5)
    assert len(server.seen) == 2
