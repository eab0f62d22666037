"""The audit and the bill of materials: what they say when something is wrong, and when nobody can tell."""

from __future__ import annotations

import json
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@contextmanager
def database(vulnerable: str = "") -> Iterator[str]:
    """A stand-in for the OSV database; its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))["queries"]
            known = {"vulns": [{"id": "GHSA-aaaa", "modified": "2026-01-01T00:00:00Z"}]}
            self._say({"results": [known if query["package"]["name"] == vulnerable else {} for query in asked]})

        def do_GET(self) -> None:
            self._say({"id": "GHSA-aaaa", "modified": "2026-01-01T00:00:00Z", "summary": "It is bad.", "affected": []})

        def _say(self, answer: Any) -> None:
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def audit(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    env = None if path is None else {"PATH": path}
    script = str(ROOT / "tools/audit.sh")
    return subprocess.run(
        ["bash", script, *arguments], capture_output=True, text=True, check=False, env=env, timeout=90
    )


@pytest.fixture
def _uv() -> None:
    if shutil.which("uv") is None:
        pytest.skip("no uv here")


@pytest.mark.usefixtures("_uv")
def test_a_vulnerable_dependency_fails_the_audit() -> None:
    with database("aiohttp") as url:
        done = audit("--service-url", url)
    assert done.returncode == 1
    assert "GHSA-aaaa" in done.stderr
    assert "uv lock -P" in done.stderr


@pytest.mark.usefixtures("_uv")
def test_without_a_finding_it_passes() -> None:
    with database() as url:
        done = audit("--service-url", url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no known vulnerability" in done.stdout


@pytest.mark.usefixtures("_uv")
def test_where_nobody_can_tell_it_says_so_and_passes() -> None:
    done = audit("--service-url", "http://127.0.0.1:9")
    assert done.returncode == 0
    assert "nothing was looked up" in done.stderr


def test_without_uv_it_says_so_and_passes(tmp_path: Path) -> None:
    for tool in ("bash", "dirname"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or "")
    done = audit(path=str(tmp_path))
    assert done.returncode == 0
    assert "uv is not here" in done.stderr


@pytest.mark.usefixtures("_uv")
def test_the_bill_of_materials_lists_what_is_locked(tmp_path: Path) -> None:
    target = tmp_path / "sbom.json"
    done = subprocess.run(
        ["make", "--no-print-directory", "sbom", f"SBOM={target}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    bill = json.loads(target.read_text())
    assert bill["bomFormat"] == "CycloneDX"
    versions = {part["name"]: part.get("version") for part in bill["components"]}
    locked = {
        package["name"]: package.get("version") for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    }
    assert {"kopf", "aiohttp", "redis", "pydantic"} <= versions.keys()
    assert {name: version for name, version in versions.items() if locked.get(name) != version} == {}
    assert "pytest" not in versions


def test_every_locked_package_is_pinned_by_hash() -> None:
    for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]:
        if "editable" in package["source"]:
            continue
        files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
        assert files, package["name"]
        assert all(file["hash"].startswith("sha256:") for file in files), package["name"]
