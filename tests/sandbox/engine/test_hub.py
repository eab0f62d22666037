"""The hub of the sandbox: its repositories pass the weights container's own checks and load in the engine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sglpool.catalog import ModelProfile, load_catalog
from sglpool.render.templates import weight_files
from sglpool.sandbox.engine.modelfiles import read_config, read_weights
from sglpool.sandbox.images import hub, resolve

REPOSITORIES = [model for model in load_catalog().models if model.repo]
DRAFTS = [(model, draft) for model in REPOSITORIES for draft in model.drafts]
LIMIT_S = 60


def write(repo: str, folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, content in hub.repository(repo, "main").items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("model", REPOSITORIES, ids=lambda model: model.name)
def test_a_model_is_what_the_catalogue_says(model: ModelProfile, tmp_path: Path) -> None:
    folder = write(model.repo, tmp_path / "model")
    assert weight_files.check_folder(folder).problems == []
    config, weights = read_config(str(folder)), read_weights(folder)
    assert config.layout == model.layout
    assert config.architecture == model.architecture
    assert config.max_context_tokens == model.max_context_tokens
    assert config.vision == model.vision
    assert weights.checkpoint_bytes == model.checkpoint_bytes
    assert model.replicated_bytes_low <= weights.replicated_bytes <= model.replicated_bytes_high
    assert weight_files.own_name(folder) == model.repo


@pytest.mark.parametrize(("model", "draft"), DRAFTS, ids=lambda profile: profile.repo)
def test_a_draft_records_its_target(model: ModelProfile, draft: object, tmp_path: Path) -> None:
    profile = next(known for known in model.drafts if known == draft)
    folder = write(profile.repo, tmp_path / "draft")
    assert weight_files.check_folder(folder).problems == []
    assert weight_files.recorded_target(folder) == model.repo
    assert read_config(str(folder)).layout == profile.layout
    assert read_config(str(folder)).block_size == profile.draft_tokens
    assert read_weights(folder).checkpoint_bytes == profile.checkpoint_bytes


def test_the_catalogue_has_a_draft_to_test_with() -> None:
    assert DRAFTS


@pytest.mark.parametrize(("repo", "revision"), [("nobody/nothing", "main"), (REPOSITORIES[0].repo, "does-not-exist")])
def test_what_the_hub_does_not_know_is_not_found(repo: str, revision: str) -> None:
    with pytest.raises(hub.RepositoryNotFound):
        hub.repository(repo, revision)


def test_the_card_says_that_the_weights_are_simulated() -> None:
    card = hub.repository(REPOSITORIES[0].repo, None)["README.md"].decode()
    assert "(simulated)" in card
    assert "not the model's weights" in card


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("SGLPOOL_CACHE", str(tmp_path / "cache"))
    return [f"{resolve('lmsysorg/sglang:latest').path}/python3", "-c"]


def test_the_client_completes_a_broken_off_download(python: list[str], tmp_path: Path) -> None:
    repo, folder = REPOSITORIES[0].repo, tmp_path / "model"
    code = f"""
import huggingface_hub as h
print(h.snapshot_download(repo_id={repo!r}, revision="main", local_dir={str(folder)!r}, ignore_patterns=["*.md"]))
"""
    done = subprocess.run([*python, code], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert done.stdout.strip() == str(folder)
    assert not (folder / "README.md").exists()
    whole = sorted(folder.glob("*.safetensors"))
    kept = whole[1].stat().st_ino
    whole[0].write_bytes(b"cut")
    subprocess.run([*python, code], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert weight_files.check_folder(folder).problems == []
    assert whole[1].stat().st_ino == kept


def test_the_client_knows_sizes_and_answers_404(python: list[str]) -> None:
    repo = REPOSITORIES[0].repo
    code = f"""
import huggingface_hub as h
api = h.HfApi()
info = api.model_info({repo!r}, revision="main", files_metadata=True)
print(all(item.size > 0 for item in info.siblings), api.model_info({repo!r}).siblings[0].size)
try:
    h.snapshot_download(repo_id="nobody/nothing", revision="main", local_dir="/nowhere", ignore_patterns=[])
except Exception as error:
    print(error.response.status_code)
"""
    done = subprocess.run([*python, code], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert done.stdout.split() == ["True", "None", "404"]
