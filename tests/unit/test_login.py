"""How kopf is told to reach the API server, in a pod and outside one."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import kopf
import pytest

from sglpool.controller.login import connect
from support.certificates import write_certificate

IN_A_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}


@pytest.fixture
def account(tmp_path: Path) -> Path:
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "token").write_text("secret\n")
    return folder


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = tmp_path / "kubeconfig"
    path.write_text(
        "current-context: c\n"
        "contexts: [{name: c, context: {cluster: k, user: u}}]\n"
        "clusters: [{name: k, cluster: {server: 'https://other:1'}}]\n"
        "users: [{name: u, user: {token: theirs}}]\n"
    )
    monkeypatch.setenv("KUBECONFIG", str(path))
    return str(path)


def login(kubeconfig: str | None, environ: dict[str, str], account: Path) -> Any:
    return connect(kubeconfig, environ, account, settings=kopf.OperatorSettings())


def test_in_a_pod_it_needs_no_cluster_dns(account: Path) -> None:
    found = login(None, IN_A_POD, account)
    assert (found.server, found.token) == ("https://10.0.0.1:6443", "secret")


def test_an_address_of_ipv6_is_put_in_brackets(account: Path) -> None:
    assert login(None, {"KUBERNETES_SERVICE_HOST": "fd00::1"}, account).server == "https://[fd00::1]:443"


def test_a_token_that_was_rotated_is_read_at_the_next_login(account: Path) -> None:
    login(None, IN_A_POD, account)
    (account / "token").write_text("newer")
    assert login(None, IN_A_POD, account).token == "newer"


def test_a_kubeconfig_that_was_named_wins_over_the_account(account: Path, kubeconfig: str) -> None:
    found = login(kubeconfig, IN_A_POD, account)
    assert (found.server, found.token) == ("https://other:1", "theirs")


@pytest.mark.parametrize(("no_proxy", "proxy"), [("", "http://proxy:3128"), ("10.0.0.1", None)])
def test_the_proxy_of_the_environment_is_used(
    account: Path, monkeypatch: pytest.MonkeyPatch, no_proxy: str, proxy: str | None
) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", no_proxy)
    assert login(None, IN_A_POD, account).proxy_url == proxy


def test_a_ca_without_the_newer_extensions_is_taken(account: Path) -> None:
    write_certificate(account)
    (account / "ca.crt").write_bytes((account / "tls.crt").read_bytes())
    assert not login(None, IN_A_POD, account).as_ssl_context().verify_flags & ssl.VERIFY_X509_STRICT
