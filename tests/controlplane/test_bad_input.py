"""Bad and good input on a real API server: what CEL and the schema can see is refused before anything is stored."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.bad_inputs import INFEASIBLE, REFUSED, BadInput
from support.kubectl import Kubectl
from support.waiting import wait_until

pytestmark = [pytest.mark.controlplane, pytest.mark.usefixtures("crd")]

ROOT = Path(__file__).parents[2]
POOL_FILES = sorted([*(ROOT / "manifests/samples").glob("*.yaml"), *(ROOT / "tests/golden/pools").glob("*.yaml")])
DRY_RUN = ("create", "--dry-run=server", "--validate=strict", "-f", "-")


@pytest.fixture(scope="module")
def dry_run_namespace(kubectl: Kubectl) -> Iterator[str]:
    """One namespace for all: nothing is stored in it."""
    name = f"test-{uuid.uuid4().hex[:10]}"
    kubectl("create", "namespace", name)
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


def as_text(manifest: dict[str, Any]) -> str:
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "namespace"}
    return json.dumps({**manifest, "metadata": metadata})


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_the_api_server_refuses_what_plan_refuses(case: BadInput, kubectl: Kubectl, dry_run_namespace: str) -> None:
    done = kubectl.run(*DRY_RUN, "-n", dry_run_namespace, input=as_text(case.manifest()))

    assert done.returncode != 0, f"accepted: {done.stdout}"
    assert case.path in done.stderr
    assert [word for word in case.server or case.words if word not in done.stderr] == [], done.stderr


@pytest.mark.parametrize("case", INFEASIBLE.values(), ids=INFEASIBLE)
def test_the_api_server_takes_what_only_arithmetic_refuses(
    case: BadInput, kubectl: Kubectl, dry_run_namespace: str
) -> None:
    kubectl(*DRY_RUN, "-n", dry_run_namespace, input=as_text(case.manifest()))


@pytest.mark.parametrize("path", POOL_FILES, ids=lambda path: path.stem)
def test_the_api_server_takes_every_good_pool(path: Path, kubectl: Kubectl, dry_run_namespace: str) -> None:
    manifest = yaml.safe_load(path.read_text(encoding="utf-8"))

    kubectl(*DRY_RUN, "-n", dry_run_namespace, input=as_text(manifest))


def test_yaml_that_is_none_is_refused_by_kubectl_too(kubectl: Kubectl, dry_run_namespace: str) -> None:
    done = kubectl.run(*DRY_RUN, "-n", dry_run_namespace, input="spec:\n\tmodel: x\n")

    assert done.returncode != 0
    assert "yaml" in done.stderr.lower()


@pytest.mark.usefixtures("operator")
def test_the_operator_says_what_only_arithmetic_refuses(kubectl: Kubectl, namespace: str) -> None:
    """All cases at once: each becomes a condition with the same words as in `sglpool plan`, and nothing is created."""
    for number, case in enumerate(INFEASIBLE.values()):
        manifest = case.manifest()
        manifest["metadata"]["name"] = f"bad-{number}"
        kubectl("create", "-n", namespace, "-f", "-", input=as_text(manifest))

    def condition(number: int) -> dict[str, Any]:
        status = kubectl.json("get", "sglpool", f"bad-{number}", "-n", namespace)["status"]
        return next((c for c in status["conditions"] if c["type"] == "Feasible"), {})

    for number, case in enumerate(INFEASIBLE.values()):
        wait_until(
            lambda number=number: condition(number),
            timeout_s=60,
            describe=f"{case.id} has a condition Feasible",
        )
        found = condition(number)
        assert found["reason"] == case.path, case.id
        assert [word for word in case.words if word not in found["message"]] == [], found["message"]
    assert kubectl.json("get", "statefulsets,pods", "-n", namespace)["items"] == []
