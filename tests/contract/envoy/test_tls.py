"""TLS of the endpoint: from files, renewed without a restart."""

from __future__ import annotations

import http.client
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.certificates import write_certificate
from support.waiting import wait_until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def subject(port: int, folder: Path) -> str:
    """Common name of the certificate that is served."""
    (folder / "seen.pem").write_text(ssl.get_server_certificate(("127.0.0.1", port), timeout=5))
    command = ["openssl", "x509", "-in", "seen.pem", "-noout", "-subject"]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=30).stdout


def test_tls_serves_and_takes_a_new_certificate(make_router: Callable[..., Any], tmp_path: Path) -> None:
    write_certificate(tmp_path / "tls", "old")
    router = make_router(tls_dir=tmp_path / "tls")
    assert router.envoy.request(body=CHAT).status == 200
    assert "old" in subject(router.envoy.port, tmp_path)
    held = router.envoy.connect()
    held.request("GET", "/v1/models")
    assert router.envoy.read(held.getresponse()).status == 200
    write_certificate(tmp_path / "tls", "new")
    wait_until(lambda: "new" in subject(router.envoy.port, tmp_path), timeout_s=15, describe="the new certificate")
    held.request("GET", "/v1/models")
    assert router.envoy.read(held.getresponse()).status == 200
    held.close()


def test_plain_http_is_refused_where_tls_is_on(make_router: Callable[..., Any], tmp_path: Path) -> None:
    write_certificate(tmp_path / "tls")
    router = make_router(tls_dir=tmp_path / "tls")
    with pytest.raises((http.client.HTTPException, OSError)):
        router.envoy.request(body=CHAT, port=router.envoy.port)
    assert router.counts() == [0, 0]
