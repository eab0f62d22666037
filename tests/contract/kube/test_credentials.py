"""Where the Kubernetes client gets its credentials, and which way it takes to the server."""

import json

import pytest

from contract.kube.bad_server import kubeconfig_for, ok
from sglpool.kube import KubeClient, KubeConfigError
from sglpool.kube.resources import PODS


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
