"""weights.py, run as an init container, against folders that are broken and a hub that fails on demand."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sglpool.render.scripts import WeightsSource

from .pod import STUBS, Pod, eventually, inside, needs_root


def safetensors(path: Path, size_bytes: int = 1000) -> None:
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "b": {"dtype": "U8", "shape": [size_bytes], "data_offsets": [8, size_bytes]},
            "a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]},
        }
    ).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(size_bytes))


def model_folder(folder: Path, **config: Any) -> Path:
    """A good model of three shards."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"architectures": ["KimiForCausalLM"]} | config))
    names = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
    for name in names:
        safetensors(folder / name)
    index = {"weight_map": {f"tensor{number}": name for number, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def volume(folder: Path, role: Any = "model") -> WeightsSource:
    return WeightsSource(role=role, kind="persistentVolumeClaim", path=str(folder))


@dataclass
class Hub:
    """The stand-in for the hub, and a cache to download into."""

    pod: Pod

    @property
    def folder(self) -> Path:
        return self.pod.folder / "hub"

    def source(self, cache: Path | None = None, **changes: Any) -> WeightsSource:
        path = (cache or self.pod.folder / "node") / "models" / "moonshotai" / "Kimi-K2.6" / "c0ffee"
        source = WeightsSource(
            role="model", kind="huggingFace", path=str(path), repo="moonshotai/Kimi-K2.6", revision="c0ffee"
        )
        return replace(source, **changes)

    def behave(self, **settings: Any) -> None:
        (self.folder / "hub.json").write_text(json.dumps(settings))

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def hub(pod: Pod) -> Hub:
    hub = Hub(pod)
    model_folder(hub.folder / "repo")
    hub.behave()
    pod.configure(weights=(hub.source(),))
    return hub


def weights_env(pod: Pod, hostname: str = "kimi-b200-0") -> dict[str, str]:
    return {"PYTHONPATH": str(STUBS), "FAKE_HUB": str(pod.folder / "hub"), "HF_TOKEN": "t", "HOSTNAME": hostname}


def run_weights(pod: Pod) -> tuple[int, str]:
    result = subprocess.run(
        [sys.executable, pod.script("weights.py")],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | weights_env(pod),
    )
    assert "Traceback" not in result.stderr + result.stdout
    return result.returncode, result.stdout


def test_a_good_folder_is_reported_with_its_size(pod: Pod) -> None:
    folder = model_folder(pod.folder / "model")
    pod.configure(weights=(volume(folder),))
    code, output = run_weights(pod)
    total = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert code == 0
    assert f"sglpool: model: 3 weight files with {total} bytes" in output
    assert f"in {folder} are whole" in output


def test_a_truncated_file_is_named_with_both_sizes(pod: Pod) -> None:
    folder = model_folder(pod.folder / "model")
    victim = folder / "model-00002-of-00003.safetensors"
    whole = victim.stat().st_size
    victim.write_bytes(victim.read_bytes()[:-1])
    pod.configure(weights=(volume(folder),))
    code, output = run_weights(pod)
    assert code == 1
    assert f"sglpool: model: {victim} has {whole - 1} bytes where its header says {whole}.\n" in output
    assert f"sglpool: Copy these files to {folder} again" in output
    assert victim.exists(), "a volume of the user is never changed"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "has 0 bytes, too few for a safetensors file."),
        (b"\xff" * 64, "has 64 bytes, but its header alone would be 18446744073709551615 bytes long."),
        (struct.pack("<Q", 4) + b"nope", "(12 bytes) has a header that is not one of a safetensors file."),
        (struct.pack("<Q", 9) + b'{"a": {}}', "(17 bytes) has a header that is not one of a safetensors file."),
        (struct.pack("<Q", 2) + b"[]", "(10 bytes) has a header that is not one of a safetensors file."),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer of 43 bytes"),
    ],
    ids=["empty", "garbage", "not-json", "no-offsets", "not-an-object", "lfs"],
)
def test_a_wrong_header_is_a_sentence(pod: Pod, content: bytes, sentence: str) -> None:
    folder = model_folder(pod.folder / "model")
    victim = folder / "model-00003-of-00003.safetensors"
    victim.write_bytes(content)
    pod.configure(weights=(volume(folder),))
    code, output = run_weights(pod)
    assert code == 1
    assert f"{victim} {sentence}" in output


def test_a_missing_shard_is_named(pod: Pod) -> None:
    folder = model_folder(pod.folder / "model")
    (folder / "model-00002-of-00003.safetensors").unlink()
    pod.configure(weights=(volume(folder),))
    code, output = run_weights(pod)
    assert code == 1
    assert f"{folder}/model-00002-of-00003.safetensors is missing" in output
    (folder / "model.safetensors.index.json").unlink()
    assert run_weights(pod)[0] == 1, "the numbers in the names tell it too"


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("config.json", None, "config.json is missing"),
        ("config.json", "{", "config.json (1 bytes) is not a JSON object."),
        ("config.json", "{}", "config.json names no `architectures`"),
        ("model.safetensors.index.json", "{}", "(2 bytes) is not an index of weights."),
    ],
)
def test_broken_json_files_are_named(pod: Pod, name: str, content: str | None, sentence: str) -> None:
    folder = model_folder(pod.folder / "model")
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    pod.configure(weights=(volume(folder),))
    code, output = run_weights(pod)
    assert code == 1
    assert sentence in output


def test_folders_without_weights(pod: Pod) -> None:
    pod.configure(weights=(volume(pod.folder / "nowhere"),))
    assert run_weights(pod) == (
        1,
        f"sglpool: model: {pod.folder}/nowhere is not a folder.\n"
        f"sglpool: Copy these files to {pod.folder}/nowhere again; the pod starts once they are whole.\n",
    )
    folder = pod.folder / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["X"]}')
    pod.configure(weights=(volume(folder),))
    assert "holds no *.safetensors file." in run_weights(pod)[1]
    (folder / "pytorch_model.bin").touch()
    code, output = run_weights(pod)
    assert code == 0
    assert "1 of another format are not checked" in output


@pytest.mark.parametrize(
    ("config", "code", "sentence"),
    [
        ({"target_model_name_or_path": "moonshotai/Kimi-K2.6"}, 0, None),
        ({"speculators_config": {"verifier": {"name_or_path": "moonshotai/Kimi-K2.6"}}}, 0, None),
        ({}, 0, "names no target"),
        ({"target_model_name_or_path": "/data/some-model"}, 0, "cannot tell whether this is it"),
        ({"target_model_name_or_path": "zai-org/GLM-5.1"}, 1, "was trained for zai-org/GLM-5.1, but the model is"),
        ({"architectures": []}, 1, "names no `architectures`"),
    ],
)
def test_a_draft_model_fits_its_target(pod: Pod, config: dict[str, Any], code: int, sentence: str | None) -> None:
    model = replace(volume(model_folder(pod.folder / "model")), repo="nvidia/Kimi-K2.6-NVFP4")
    draft = volume(model_folder(pod.folder / "draft", **config), role="draft")
    pod.configure(weights=(model, draft))
    result, output = run_weights(pod)
    assert result == code
    assert (sentence or "draft: 3 weight files") in output


def test_a_download_is_verified_and_not_repeated(hub: Hub) -> None:
    assert run_weights(hub.pod)[0] == 0
    assert run_weights(hub.pod)[0] == 0
    assert hub.calls() == ["moonshotai/Kimi-K2.6 c0ffee t"]


def test_two_replicas_of_a_node_download_once(hub: Hub) -> None:
    hub.behave(hold=True)
    command = [sys.executable, hub.pod.script("weights.py")]
    first = hub.pod.spawn(command, weights_env(hub.pod, "kimi-b200-0"))
    eventually(hub.calls, "the first download has begun")
    second = hub.pod.spawn(command, weights_env(hub.pod, "kimi-b200-1"))
    eventually(lambda: "waiting for kimi-b200-0 (since " in hub.pod.log(), "the second says for whom it waits")
    (hub.folder / "go").touch()
    assert first.wait(20) == 0
    assert second.wait(20) == 0
    assert len(hub.calls()) == 1
    assert hub.pod.log().count("are whole") == 2


def test_a_holder_that_dies_frees_the_lock(hub: Hub) -> None:
    hub.behave(hold=True)
    command = [sys.executable, hub.pod.script("weights.py")]
    first = hub.pod.spawn(command, weights_env(hub.pod))
    eventually(hub.calls, "the first download has begun")
    first.kill()
    (hub.folder / "go").touch()
    assert run_weights(hub.pod)[0] == 0
    assert len(hub.calls()) == 2


def test_waiting_for_the_lock_has_a_limit(hub: Hub) -> None:
    hub.behave(hold=True)
    command = [sys.executable, hub.pod.script("weights.py")]
    hub.pod.spawn(command, weights_env(hub.pod, "kimi-b200-0"))
    eventually(hub.calls, "the first download has begun")
    hub.pod.configure(weights_policy=replace(hub.pod.config.weights_policy, lock_timeout_s=0.3))
    code, output = run_weights(hub.pod)
    assert code == 1
    assert "c0ffee.lock, held by kimi-b200-0 (since " in output


@pytest.mark.parametrize("pid_1", [False, pytest.param(True, marks=needs_root)])
def test_sigterm_ends_a_download_at_once(hub: Hub, pid_1: bool) -> None:
    hub.behave(hold=True)
    prefix = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"] if pid_1 else []
    process = hub.pod.spawn([*prefix, sys.executable, hub.pod.script("weights.py")], weights_env(hub.pod))
    eventually(hub.calls, "the download has begun")
    os.kill(inside(process) if pid_1 else process.pid, signal.SIGTERM)
    assert process.wait(10) == 143
    assert "a download goes on at the next start" in hub.pod.log()


def test_a_download_goes_on_after_the_network_failed(hub: Hub) -> None:
    hub.behave(fail=["network", "network"])
    code, output = run_weights(hub.pod)
    assert code == 0
    assert "the download broke off: connection reset by peer. Going on in 0.02 s." in output
    assert len(hub.calls()) == 3


def test_a_download_does_not_try_for_ever(hub: Hub) -> None:
    hub.behave(fail=["network"] * 9)
    code, output = run_weights(hub.pod)
    assert code == 1
    assert "failed 5 times; the last time: connection reset by peer." in output
    assert len(hub.calls()) == 5


@pytest.mark.parametrize(("status", "word"), [(401, "HF_TOKEN"), (403, "licence"), (404, "revision")])
def test_what_the_hub_refuses_is_not_asked_again(hub: Hub, status: int, word: str) -> None:
    hub.behave(fail=[status] * 9)
    code, output = run_weights(hub.pod)
    assert code == 1
    assert "cannot download moonshotai/Kimi-K2.6 at c0ffee" in output
    assert word in output
    assert len(hub.calls()) == 1


def test_a_file_that_arrives_truncated_is_fetched_again(hub: Hub) -> None:
    hub.behave(fail=["truncate"])
    code, output = run_weights(hub.pod)
    assert code == 0
    assert "where its header says" in output
    assert "Fetching it again." in output
    assert len(hub.calls()) == 2


def test_a_file_that_stays_broken_is_an_error(hub: Hub) -> None:
    hub.behave(fail=["truncate"] * 9)
    code, output = run_weights(hub.pod)
    assert code == 1
    assert "Fetching again did not help: look at moonshotai/Kimi-K2.6 at c0ffee" in output
    assert len(hub.calls()) == 2


def test_a_file_that_broke_after_the_download_is_fetched_again(hub: Hub) -> None:
    assert run_weights(hub.pod)[0] == 0
    victim = Path(hub.source().path, "model-00001-of-00003.safetensors")
    victim.write_bytes(b"")
    assert run_weights(hub.pod)[0] == 0
    assert victim.stat().st_size > 1000
    assert len(hub.calls()) == 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mount)], capture_output=True)
    if made.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


@pytest.mark.parametrize("known_by", ["hub", "catalogue"])
def test_a_disk_that_is_too_small_is_found_before_the_download(hub: Hub, small_disk: Path, known_by: str) -> None:
    safetensors(hub.folder / "repo" / "model-00001-of-00003.safetensors", 600_000)
    hub.behave(sizes_known=known_by == "hub")
    source = hub.source(small_disk, expected_bytes=700_000 if known_by == "catalogue" else None)
    hub.pod.configure(weights=(source,))
    code, output = run_weights(hub.pod)
    free = shutil.disk_usage(small_disk).free
    assert code == 1
    assert hub.calls() == []
    assert f"the disk of {source.path} lacks " in output
    assert f"are still to download, {free} are free." in output


def test_a_disk_that_fills_up_is_named(hub: Hub, small_disk: Path) -> None:
    safetensors(hub.folder / "repo" / "model-00001-of-00003.safetensors", 600_000)
    hub.behave(sizes_known=False)
    source = hub.source(small_disk)
    hub.pod.configure(weights=(source,))
    code, output = run_weights(hub.pod)
    assert code == 1
    assert len(hub.calls()) == 1
    assert f"the disk of {source.path} is full" in output


def test_a_cache_that_cannot_be_written_is_named(hub: Hub) -> None:
    (hub.pod.folder / "node").write_text("a file, not a folder")
    code, output = run_weights(hub.pod)
    assert code == 1
    assert f"cannot provide the weights: Not a directory ({hub.source().path})" in output
