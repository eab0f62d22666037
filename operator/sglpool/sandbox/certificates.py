"""One certificate authority and one administrator's pair per sandbox, made by the openssl command.

The pair serves the API server, signs ServiceAccount tokens and logs the administrator in: fine for a control
plane that listens on loopback, and for nothing else.
"""

from __future__ import annotations

import base64
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import yaml

from sglpool.sandbox.errors import SandboxError

_DAYS = "3650"
# Python 3.13 verifies strictly: a CA needs keyUsage, a leaf the key identifiers.
_CA_EXTENSIONS = """\
[req]
distinguished_name = name
x509_extensions = ca
[name]
[ca]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
"""
_LEAF_EXTENSIONS = """\
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature, keyEncipherment
extendedKeyUsage = serverAuth, clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = IP:127.0.0.1, DNS:localhost, DNS:kubernetes.default.svc
"""


@dataclass(frozen=True, slots=True)
class Certificates:
    """Where the files are."""

    ca: Path
    certificate: Path
    key: Path


def create_certificates(folder: Path) -> Certificates:
    """Make a new authority and pair in `folder`.

    Raises:
        SandboxError: openssl is not installed, or refuses.
    """
    openssl = shutil.which("openssl")
    if openssl is None:
        raise SandboxError("`openssl` is not on PATH; install the package openssl")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ca.cnf").write_text(_CA_EXTENSIONS)
    (folder / "leaf.ext").write_text(_LEAF_EXTENSIONS)
    new_key = ["-newkey", "rsa:2048", "-nodes", "-config", "ca.cnf"]
    ca = [*new_key, "-days", _DAYS, "-subj", "/CN=sglpool-sandbox", "-keyout", "ca.key", "-out", "ca.crt"]
    admin = [*new_key, "-subj", "/O=system:masters/CN=admin", "-keyout", "admin.key", "-out", "admin.csr"]
    signed_by = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", _DAYS]
    _run([openssl, "req", "-x509", *ca], folder)
    _run([openssl, "req", "-new", *admin], folder)
    leaf = ["-req", "-in", "admin.csr", *signed_by, "-extfile", "leaf.ext", "-out", "admin.crt"]
    _run([openssl, "x509", *leaf], folder)
    return certificates_in(folder)


def certificates_in(folder: Path) -> Certificates:
    """The files that `create_certificates` made in `folder`."""
    return Certificates(ca=folder / "ca.crt", certificate=folder / "admin.crt", key=folder / "admin.key")


def write_kubeconfig(path: Path, *, server: str, certificates: Certificates) -> None:
    """Write a kubeconfig that holds its credentials itself, so that it can be copied anywhere."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "sandbox",
        "clusters": [
            {
                "name": "sandbox",
                "cluster": {"server": server, "certificate-authority-data": _base64(certificates.ca)},
            }
        ],
        "users": [
            {
                "name": "admin",
                "user": {
                    "client-certificate-data": _base64(certificates.certificate),
                    "client-key-data": _base64(certificates.key),
                },
            }
        ],
        "contexts": [{"name": "sandbox", "context": {"cluster": "sandbox", "user": "admin", "namespace": "default"}}],
    }
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(config, sort_keys=False))


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise SandboxError(f"`{' '.join(command[:2])}` failed: {done.stderr.strip()}")
