"""A few plain requests to an API server, for the sandbox's own needs: nodes, leases, readiness.

Not a Kubernetes client: no watches, no types, no retries. It speaks to whatever a kubeconfig with
embedded client certificates points at.
"""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from sglpool.sandbox.errors import SandboxError

Manifest = dict[str, Any]
_LIMIT_S = 10.0


class RequestRefused(SandboxError):
    """The server answered with an error status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ApiServer:
    """The server of a kubeconfig's current context."""

    def __init__(self, kubeconfig: Path) -> None:
        """Read address and credentials.

        Raises:
            SandboxError: There is no such file.
        """
        if not kubeconfig.exists():
            raise SandboxError(f"{kubeconfig} does not exist; is the sandbox up?")
        config = yaml.safe_load(kubeconfig.read_text())
        context = _named(config["contexts"], config["current-context"])["context"]
        cluster = _named(config["clusters"], context["cluster"])["cluster"]
        user = _named(config["users"], context["user"])["user"]
        self.address: str = cluster["server"]
        self.tls = ssl.create_default_context(cadata=_decoded(cluster["certificate-authority-data"]))
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as pem:
            pem.write(_decoded(user["client-certificate-data"]) + _decoded(user["client-key-data"]))
            pem.flush()
            self.tls.load_cert_chain(pem.name)
        # Loopback never goes through a proxy, whatever the environment says.
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self.tls)
        )

    def get(self, path: str) -> Manifest:
        """Read one object or list."""
        return self._json("GET", path)

    def create(self, path: str, body: Manifest) -> Manifest:
        """POST an object to its collection."""
        return self._json("POST", path, body=body)

    def patch(self, path: str, body: Manifest) -> Manifest:
        """Merge-patch one object."""
        return self._json("PATCH", path, body=body, content_type="application/merge-patch+json")

    def apply(self, path: str, body: Manifest) -> Manifest:
        """Server-side apply of one object, created if need be."""
        query = "?fieldManager=sandbox&force=true"
        return self._json("PATCH", path + query, body=body, content_type="application/apply-patch+yaml")

    def delete(self, path: str) -> None:
        """Delete one object; that it is gone already is fine."""
        try:
            self._json("DELETE", path)
        except RequestRefused as error:
            if error.status != 404:
                raise

    def text(self, path: str) -> str:
        """Read a plain-text answer such as `/readyz`."""
        return self._request("GET", path, data=None, content_type="").decode()

    def _json(
        self, method: str, path: str, *, body: Manifest | None = None, content_type: str = "application/json"
    ) -> Manifest:
        data = json.dumps(body).encode() if body is not None else None
        answer: Manifest = json.loads(self._request(method, path, data=data, content_type=content_type))
        return answer

    def _request(self, method: str, path: str, *, data: bytes | None, content_type: str) -> bytes:
        request = urllib.request.Request(self.address + path, data=data, method=method)
        request.add_header("Accept", "application/json")
        if data is not None:
            request.add_header("Content-Type", content_type)
        try:
            with self._opener.open(request, timeout=_LIMIT_S) as response:
                content: bytes = response.read()
        except urllib.error.HTTPError as error:
            with error:
                raise RequestRefused(f"{method} {path}: {error_message(error.read())}", error.code) from None
        except OSError as error:
            raise SandboxError(f"{self.address} does not answer: {error}") from error
        return content


def _named(entries: list[Manifest], name: str) -> Manifest:
    return next(entry for entry in entries if entry["name"] == name)


def _decoded(data: str) -> str:
    return base64.b64decode(data).decode()


def error_message(body: bytes) -> str:
    """The sentence in an error answer of an API server."""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip()
