"""Every shape of router is a configuration that Envoy accepts."""

from __future__ import annotations

import itertools
import json
import subprocess
from pathlib import Path

import pytest
import yaml

from sglpool.render.envoy import bootstrap, listener
from sglpool.render.envoy.shape import RouterShape
from sglpool.routing import pickerconfig as names
from support.certificates import write_certificate
from support.envoy_process import BINARY, eds, shape

SIZES = ((1, 1), (50, 24), (1000, 4096))
KEYS = ({}, {"alice": "k"}, {f"c{n}": f"key-{n}" for n in range(500)})


@pytest.mark.parametrize(("size", "keys", "tls"), list(itertools.product(SIZES, (None, *KEYS), (False, True))))
def test_envoy_accepts_it(tmp_path: Path, size: tuple[int, int], keys: dict[str, str] | None, tls: bool) -> None:
    own = shape(
        max_replicas=size[0], max_concurrent_requests=size[1], api_keys=keys is not None, shared_dir=str(tmp_path),
        config_dir=str(tmp_path), tls_dir=str(tmp_path / "tls") if tls else None,
    )  # fmt: skip
    if tls:
        write_certificate(tmp_path / "tls")
    for name, text in bootstrap.files(own).items():
        (tmp_path / name).write_text(text)
    (tmp_path / names.EDS_FILE).write_text(json.dumps(eds([])))
    # Envoy validates the bootstrap alone, so the listener is put into it.
    whole = yaml.safe_load((tmp_path / bootstrap.BOOTSTRAP_FILE).read_text())
    del whole["dynamic_resources"]
    (serving,) = listener.listener(own, keys or {})["resources"]
    whole["static_resources"]["listeners"].append({k: v for k, v in serving.items() if k != "@type"})
    (tmp_path / bootstrap.BOOTSTRAP_FILE).write_text(yaml.safe_dump(whole))
    ended = subprocess.run(
        [str(BINARY), "--mode", "validate", *bootstrap.arguments(own, concurrency=2)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    for warning in ("deprecated", "work-in-progress"):
        assert warning not in ended.stderr.lower()


def test_the_shape_travels_as_json() -> None:
    own = shape(api_keys=True, tls_dir="/tls")
    assert RouterShape.from_json(json.loads(json.dumps(own.to_json()))) == own


def test_no_key_is_in_the_files_of_the_configmap() -> None:
    texts = bootstrap.files(shape(api_keys=True, tls_dir="/tls"))
    assert set(texts) == {"envoy.yaml", "tls.json"}
    assert "rbac" not in "".join(texts.values())


def test_what_nobody_should_know_is_no_key() -> None:
    text = json.dumps(listener.listener(shape(api_keys=True), {"a": "k\n", "b": "k", "c": " "}))
    assert text.count('"exact": "Bearer k"') == text.count('"exact": "k"') == 1
    assert '"exact": ""' not in text
    assert '"exact": "Bearer "' not in text


def test_the_same_shape_is_the_same_text() -> None:
    assert bootstrap.files(shape()) == bootstrap.files(shape())
    assert listener.listener(shape(), {"b": "2", "a": "1"}) == listener.listener(shape(), {"a": "1", "b": "2"})
