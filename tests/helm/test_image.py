"""The image holds what the chart and the routers run in it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from support.helm import Helm

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_it_has_the_pickers_libraries_too() -> None:
    """The router's containers run from the same image: uvloop and redis are an extra that a plain sync leaves out."""
    syncs = [shlex.split(line) for line in re.findall(r"uv sync .*", DOCKERFILE)]
    assert syncs
    assert [words for words in syncs if words[words.index("--extra") + 1] != "router"] == []


def test_it_runs_as_the_user_of_the_chart_and_finds_its_program(helm4: Helm) -> None:
    (deployment,) = [o for o in helm4.template() if o["kind"] == "Deployment"]
    spec = deployment["spec"]["template"]["spec"]
    (user,) = re.findall(r"^USER (\S+)$", DOCKERFILE, flags=re.MULTILINE)
    security = spec["securityContext"]
    assert user == f"{security['runAsUser']}:{security['runAsGroup']}"
    assert spec["containers"][0]["command"] == ["sglpool"]
    assert "ENV PATH=/src/.venv/bin:$PATH" in DOCKERFILE


def test_the_base_can_be_pinned_in_one_place() -> None:
    """By digest, which only somebody with a registry can look up: both stages take it."""
    assert re.findall(r"^FROM (\S+)", DOCKERFILE, flags=re.MULTILINE) == ["${PYTHON}", "${PYTHON}"]
    # Before the first stage, or else the second one would not have it.
    assert DOCKERFILE.index("ARG PYTHON=") < DOCKERFILE.index("FROM ")
