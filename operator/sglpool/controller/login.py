"""How kopf reaches the API server: the same server, proxy and rules for certificates as our own requests.

Kopf's own ways differ: in a pod it wants cluster DNS, whatever `--kubeconfig` says; it knows no proxy; and on Python
3.13 it refuses the CAs of many clusters. It logs in anew after a 401, so a rotated token is read. Not here: our own
requests (`kube.transport`).
"""

import dataclasses
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kopf

from sglpool.kube import proxy_for

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Connection(kopf.ConnectionInfo):
    """A connection that takes the certificates that kubectl takes."""

    def as_ssl_context(self) -> ssl.SSLContext:
        """The usual context, without the demands on extensions of a CA that are new in Python 3.13."""
        context = super().as_ssl_context()
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context


def connect(
    kubeconfig: str | None, environ: Mapping[str, str], account: Path = ACCOUNT, **kopfs: Any
) -> Connection | None:
    """Kopf's login: the pod's own account, unless a kubeconfig was named or this is no pod.

    Args:
        kubeconfig: What the command line named.
        environ: The environment.
        account: Folder of the pod's ServiceAccount.
        **kopfs: What kopf hands to login handlers.
    """
    host = environ.get("KUBERNETES_SERVICE_HOST")
    found = _own_account(host, environ, account) if host and kubeconfig is None else kopf.login_with_kubeconfig(**kopfs)
    if found is None:
        return None
    fields = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    return Connection(**fields | {"proxy_url": found.proxy_url or proxy_for(found.server)})


def _own_account(host: str, environ: Mapping[str, str], account: Path) -> kopf.ConnectionInfo:
    port = environ.get("KUBERNETES_SERVICE_PORT", "443")
    return kopf.ConnectionInfo(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        ca_path=str(account / "ca.crt"),
        token=(account / "token").read_text(encoding="utf-8").strip(),
    )


def login_of(kubeconfig: str | None) -> Any:
    """A login handler for kopf's registry."""

    def login(**kopfs: Any) -> Connection | None:
        return connect(kubeconfig, os.environ, **kopfs)

    return login
