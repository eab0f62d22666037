"""A self-signed certificate in a folder, laid out as Kubernetes mounts a Secret: files lead through `..data`."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

_versions = itertools.count()


def write_certificate(folder: Path, name: str = "localhost") -> None:
    """Write tls.crt and tls.key, or replace both at once."""
    version = folder / f"..{next(_versions)}"
    version.mkdir(parents=True)
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += [
        "-days",
        "2",
        "-subj",
        f"/CN={name}",
        "-addext",
        f"subjectAltName=DNS:{name}",
        "-keyout",
        "tls.key",
        "-out",
        "tls.crt",
    ]
    subprocess.run(command, cwd=version, check=True, capture_output=True, timeout=60)
    draft = folder / "..data_tmp"
    draft.symlink_to(version.name)
    draft.rename(folder / "..data")
    for file in ("tls.crt", "tls.key"):
        if not (folder / file).is_symlink():
            (folder / file).symlink_to(f"..data/{file}")
