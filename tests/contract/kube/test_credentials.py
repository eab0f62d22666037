"""Where the Kubernetes client gets its credentials, and which way it takes to the server."""

import datetime
import json
import ssl
from types import SimpleNamespace

import pytest
from kubernetes.aio.config import incluster_config

from contract.kube.bad_server import BadServer, kubeconfig_for, ok
from sglpool.kube import KubeClient, KubeConfigError
from sglpool.kube.resources import PODS
from sglpool.sandbox.certificates import create_certificates


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


class Clock:
    """What the official client reads the time from."""

    time = datetime.datetime(2026, 11, 30, tzinfo=datetime.UTC)

    @classmethod
    def now(cls) -> datetime.datetime:
        return cls.time


async def test_a_pod_reads_its_token_again_once_a_minute(tmp_path, monkeypatch):
    pair = create_certificates(tmp_path / "pki")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pair.certificate, pair.key)
    token = tmp_path / "token"
    token.write_text("first")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(pair.ca))
    monkeypatch.setattr(incluster_config, "datetime", SimpleNamespace(datetime=Clock, timedelta=datetime.timedelta))
    async with BadServer(script=[ok({})]).serve(tls) as server:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", server.url.rpartition(":")[2])
        async with KubeClient.connect() as kube:
            await kube.get(PODS, namespace="prod", name="a")
            token.write_text("second")
            await kube.get(PODS, namespace="prod", name="a")
            monkeypatch.setattr(Clock, "time", Clock.time + datetime.timedelta(minutes=1))
            await kube.get(PODS, namespace="prod", name="a")
    sent = [seen.headers["Authorization"].split() for seen in server.seen]
    assert [words[-1] for words in sent] == ["first", "first", "second"]
    assert {words[0].lower() for words in sent} == {"bearer"}
