"""What callers see of a server that answers badly, and what is tried again."""

from typing import Any

import pytest

from contract.kube.bad_server import CONFIGMAP, half, kubeconfig_for, ok, reset, silent, status, text
from sglpool.kube import Conflict, Forbidden, Invalid, KubeClient, KubeError, NotFound, Transient
from sglpool.kube.resources import CONFIGMAPS, PODS, POOLS


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
