"""Release downloads: resumable, checksum verified, quick to give up where the network is closed.

It fetches what a `Release` names and nothing else. A file whose checksum does not match is refused,
never handed on to another source: that is a fact the user must see.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import tarfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Collection, Mapping
from http.client import HTTPResponse
from pathlib import Path

from sglpool.sandbox.errors import SandboxError, SourceUnavailable
from sglpool.sandbox.files import publish
from sglpool.sandbox.versions import Release

CONNECT_LIMIT_S = 3.0
"""A host that does not answer by then counts as unreachable for the whole run."""
READ_LIMIT_S = 30.0
ATTEMPTS = 3
_CHUNK_BYTES = 1 << 20
_REPORT_EVERY_S = 5.0


class ReleaseDownloads:
    """Source of binaries: the projects' own releases."""

    title = "release downloads"

    def __init__(self, releases: Mapping[str, Release], *, work: Path) -> None:
        """Keep partial files under `work`, so that an interrupted download goes on where it stopped."""
        self._releases = releases
        self._work = work
        self._reachable: dict[str, bool] = {}

    def provide(self, missing: Collection[str], *, into: Path, say: Callable[[str], None]) -> None:
        """Fetch every missing program that has a release.

        Raises:
            SourceUnavailable: A host cannot be reached or does not have the file.
            SandboxError: A checksum does not match.
        """
        reasons: dict[str, None] = {}
        for name in missing:
            if release := self._releases.get(name):
                try:
                    self._fetch(name, release, into=into, say=say)
                except SourceUnavailable as error:
                    reasons[str(error)] = None
        if reasons:
            raise SourceUnavailable("; ".join(reasons))

    def _fetch(self, name: str, release: Release, *, into: Path, say: Callable[[str], None]) -> None:
        self._work.mkdir(parents=True, exist_ok=True)
        digest = self._digest(release)
        part = self._work / f"{release.filename}.part"
        self._download(name, release.url, part=part, say=say)
        actual = _sha256(part)
        if actual != digest:
            part.unlink()
            raise SandboxError(
                f"{name}: {release.url} has SHA-256 {actual}, its publisher says {digest}; the file was "
                "removed. Try again; if it stays, do not trust this network."
            )
        if release.member:
            _extract(part, member=release.member, into=into / name, work=self._work)
            part.unlink()
        else:
            publish(part, into / name)

    def _digest(self, release: Release) -> str:
        with self._open(release.checksum_url) as response:
            text = response.read().decode()
        return find_digest(text, filename=release.filename)

    def _download(self, name: str, url: str, *, part: Path, say: Callable[[str], None]) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._download_once(name, url, part=part, say=say)
                return
            except (OSError, SourceUnavailable) as error:
                if attempt == ATTEMPTS or not part.exists():
                    raise SourceUnavailable(f"{name} from {url}: {error}") from error
                say(f"{name}: {error}; trying again")
                time.sleep(2.0 ** (attempt - 1))

    def _download_once(self, name: str, url: str, *, part: Path, say: Callable[[str], None]) -> None:
        have = part.stat().st_size if part.exists() else 0
        headers = {"Range": f"bytes={have}-"} if have else {}
        try:
            response = self._open(url, headers=headers)
        except _StatusError as error:
            if have and error.status == 416:  # nothing is left to send: the part is the file
                return
            raise
        with response, part.open("ab" if response.status == 206 else "wb") as out:
            total = int(response.headers.get("Content-Length") or 0) + out.tell()
            reported = time.monotonic()
            say(f"{name}: downloading {total / 1e6:.0f} MB" + (", resumed" if out.tell() else ""))
            while chunk := response.read(_CHUNK_BYTES):
                out.write(chunk)
                if time.monotonic() - reported > _REPORT_EVERY_S:
                    reported = time.monotonic()
                    say(f"{name}: {out.tell() / 1e6:.0f} of {total / 1e6:.0f} MB")
            if total and out.tell() < total:
                raise OSError(f"the connection ended after {out.tell()} of {total} bytes")

    def _open(self, url: str, *, headers: Mapping[str, str] | None = None) -> HTTPResponse:
        self._check_reachable(url)
        request = urllib.request.Request(url, headers=dict(headers or {}))
        try:
            response: HTTPResponse = urllib.request.urlopen(request, timeout=READ_LIMIT_S)
        except urllib.error.HTTPError as error:
            error.close()
            raise _StatusError(url, error.code) from error
        except urllib.error.URLError as error:
            raise SourceUnavailable(f"{url}: {error.reason}") from error
        return response

    def _check_reachable(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme in urllib.request.getproxies():
            return  # the proxy answers for everybody
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        if host not in self._reachable:
            self._reachable[host] = _connects(host, port)
        if not self._reachable[host]:
            raise SourceUnavailable(f"{host} cannot be reached within {CONNECT_LIMIT_S:.0f} s")


class _StatusError(SourceUnavailable):
    def __init__(self, url: str, status: int) -> None:
        super().__init__(f"{url} answers HTTP {status}")
        self.status = status


def find_digest(text: str, *, filename: str) -> str:
    """The SHA-256 of `filename` in a published checksum document.

    Raises:
        SourceUnavailable: The document does not list the file.
    """
    if text.lstrip().startswith("{"):
        for asset in json.loads(text).get("assets", []):
            kind, _, digest = (asset.get("digest") or "").partition(":")
            if asset.get("name") == filename and kind == "sha256":
                return str(digest)
    else:
        rows = [line.split() for line in text.splitlines() if line.strip()]
        if len(rows) == 1 and len(rows[0]) == 1:
            return rows[0][0]
        for row in rows:
            if len(row) == 2 and row[1].lstrip("*") == filename:
                return row[0]
    raise SourceUnavailable(f"no SHA-256 is published for {filename}")


def _connects(host: str, port: int) -> bool:
    """Whether a connection opens within the limit, name resolution included (which has no limit of its own)."""
    opened = threading.Event()

    def attempt() -> None:
        try:
            socket.create_connection((host, port), timeout=CONNECT_LIMIT_S).close()
        except OSError:
            return
        opened.set()

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(CONNECT_LIMIT_S)
    return opened.is_set()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _extract(archive: Path, *, member: str, into: Path, work: Path) -> None:
    with tarfile.open(archive) as tar:
        try:
            source = tar.extractfile(member)
        except KeyError:
            source = None
        if source is None:
            raise SandboxError(f"{archive.name} holds no {member}")
        unpacked = work / f"{into.name}.unpacked"
        with source, unpacked.open("wb") as out:
            shutil.copyfileobj(source, out)
    publish(unpacked, into)
