"""No secret of a pool is told: not in logs, objects, Events, command lines or answers of any process."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from observability.live.watched import MODEL, Watched

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(300)]

WRONG_KEY = "Bearer planted-wrong-key-1212"
STORES = ("redis-server", "valkey-server")
"""The test's own store is given its password on the command line."""


def found_in(text: str, planted: Mapping[str, str]) -> list[str]:
    return [what for what, value in planted.items() if value in text]


def told(watched: Watched) -> Iterator[tuple[str, str]]:
    """Everything that anybody can read who may not read Secrets."""
    yield from _logs(watched.sandbox.folder)
    yield from _objects(watched)
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if words and not Path(words[0]).name.startswith(STORES):
            yield f"command line of {process.pid}", "\0".join(words)
    yield from _answers(watched)


def _logs(folder: Path) -> Iterator[tuple[str, str]]:
    files = [path for part in ("logs", "agent/logs") for path in (folder / part).rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert any("operator" in name for name in names), names
    for path in files:
        yield str(path.relative_to(folder)), path.read_text(errors="replace")


def _objects(watched: Watched) -> Iterator[tuple[str, str]]:
    kinds = watched.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    assert {"events", "pods", "configmaps", "inferencepools.sglpool.io"} <= set(kinds)
    # Secrets are where they belong; componentstatuses are no objects.
    for kind in sorted(set(kinds) - {"secrets", "componentstatuses"}):
        yield kind, watched.kubectl("get", kind, "--all-namespaces", "-o", "json", "--show-managed-fields")


def _answers(watched: Watched) -> Iterator[tuple[str, str]]:
    places = [(watched.operator_address, path) for path in ("/metrics", "/healthz", "/readyz")]
    for pod in watched.routers():
        ip = pod["status"]["podIP"]
        places += [(f"{ip}:9000", path) for path in ("/metrics", "/state", "/homes")]
        places += [(f"{ip}:8001", path) for path in ("/metrics", "/config_dump", "/server_info", "/certs")]
    for pod in watched.pool.pods().values():
        places += [(f"{pod['status']['podIP']}:30000", path) for path in ("/metrics", "/server_info", "/v1/loads")]
    for address, path in places:
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
                yield f"{address}{path}", answer.read().decode(errors="replace")
        except urllib.error.HTTPError as error:
            yield f"{address}{path}", error.read().decode(errors="replace")


def test_no_secret_is_told_anywhere(watched: Watched, planted: Mapping[str, str]):
    address = watched.routers()[0]["status"]["podIP"]
    question = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    assert watched.ask(address, "s", question)[0] == 200
    status, refusal = watched.ask(address, "s", question, authorization=WRONG_KEY)
    assert status == 401
    # A mistake of the user's makes processes talk.
    with pytest.raises((OSError, http.client.HTTPException)):
        urllib.request.urlopen(f"http://{address}:8000/v1/models", timeout=10)
    watched.kubectl("annotate", "sglpool", watched.pool.name, "sglpool.io/rollout=nonsense")
    watched.pool.wait_for("Ready", reason="RolloutUnknownWord")
    watched.kubectl("annotate", "sglpool", watched.pool.name, "sglpool.io/rollout-")
    # A Prometheus that is not there: whoever asks it with its token says so.
    prometheus = {"url": "http://127.0.0.1:9", "tokenSecret": {"name": "prometheus", "key": "token"}}
    autoscaling = watched.pool.manifest["spec"]["autoscaling"] | {"metrics": {"prometheus": prometheus}}
    watched.pool.apply(autoscaling=autoscaling)
    watched.pool.wait_for("ScalingActive", reason="ReplicasUnreadable")

    kept = dict(planted) | {"refused key": WRONG_KEY.split()[1]}
    places = [("answer to a wrong key", refusal), *told(watched)]
    assert len(places) > 80
    assert {where: what for where, text in places if (what := found_in(text, kept))} == {}


def test_the_search_finds_what_is_there(watched: Watched, planted: Mapping[str, str]):
    """Where Secrets are read, every one of them is found."""
    text = watched.kubectl("get", "secrets", "-o", "json")
    found = set(found_in(text, planted))
    assert {what for what in planted if what.endswith("encoded")} - found <= {"TLS key, encoded"}
    assert len(planted) == 12


def test_lines_of_a_picker_name_its_pool(watched: Watched):
    pod = watched.routers()[0]["metadata"]["name"]
    lines = watched.kubectl("logs", pod, "-c", "picker").splitlines()
    entries = [json.loads(line) for line in lines if line.startswith("{")]
    assert entries
    assert {entry["pool"] for entry in entries} == {"default/watched"}
