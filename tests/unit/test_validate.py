"""Bad input from a file: one clear sentence with path, rule and remedy, and the promised exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from sglpool.api.validate import InvalidPool, load_pool
from sglpool.cli.app import app
from support import pools
from support.bad_inputs import INFEASIBLE, REFUSED, BadInput

ROOT = Path(__file__).parents[2]
SAMPLES = sorted((ROOT / "manifests" / "samples").glob("*.yaml"))


def plan(text: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["plan", "-f", "-", *arguments], input=text)


def as_text(manifest: pools.Json) -> str:
    return yaml.safe_dump(manifest)


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_a_bad_pool_is_refused_with_path_rule_and_remedy(case: BadInput) -> None:
    result = plan(as_text(case.manifest()))

    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    sentences = [line for line in result.stderr.splitlines() if line.startswith(f"standard input: {case.path}: ")]
    assert sentences, f"nothing about {case.path}: {result.stderr}"
    assert all(any(word in line for line in sentences) for word in case.words), sentences


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_only_the_offending_field_is_named(case: BadInput) -> None:
    with pytest.raises(InvalidPool) as refused:
        load_pool(case.manifest())

    assert {problem.path for problem in refused.value.problems} == {case.path}


@pytest.mark.parametrize("case", INFEASIBLE.values(), ids=INFEASIBLE)
def test_a_pool_that_does_not_fit_says_why_and_what_would(case: BadInput) -> None:
    result = plan(as_text(case.manifest()), "-o", "json")

    answer = json.loads(result.stdout)
    told = next(gpu for gpu in answer["gpus"] if not gpu["feasible"])
    assert result.exit_code == 1
    assert not answer["feasible"]
    assert told["reason"] == case.path
    assert all(word in told["message"] for word in case.words), told["message"]


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_every_sample_fits(path: Path) -> None:
    result = CliRunner().invoke(app, ["plan", "-f", str(path)])

    assert result.exit_code == 0, result.output
    assert result.stderr == ""


def test_every_problem_of_a_pool_is_told_at_once() -> None:
    result = plan(as_text(pools.manifest({"tensorParallelSize": 3, "engine": {"imagePullPolicy": "Sometimes"}})))

    paths = [line.split(": ")[1] for line in result.stderr.splitlines()]
    assert paths == ["spec.tensorParallelSize", "spec.engine.imagePullPolicy"]


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("spec: a: b\n", "line 1, column 8", "quote texts that hold ': '"),
        ("spec:\n\tmodel: x\n", "line 2, column 1", "indent with spaces, not tabs"),
        ("spec: [1, 2\n", "line 2, column 1", "not valid YAML"),
        ("spec: 'x\n", "line 2, column 1", "close the quote"),
        ("a: 1\na: 2\n", "line 2, column 1", "'a' stands twice"),
        ("a: !!python/object:os.system x\n", "line 1, column 4", "could not determine a constructor"),
    ],
)
def test_a_syntax_error_names_line_and_column(text: str, where: str, words: str) -> None:
    result = plan(text)

    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"standard input: {where}: ")
    assert words in line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("---\n---\n", "is empty"),
        ("- a\n- b\n", "is a list, not an InferencePool"),
        ("kimi\n", "is 'kimi', not an InferencePool"),
        ("apiVersion: v1\nkind: ConfigMap\n", "kind: is ConfigMap: only InferencePool"),
        ("spec: {}\n", "kind: is missing"),
        (
            "apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\n",
            "apiVersion: is inference.networking.k8s.io/v1: sglpool's InferencePool has apiVersion sglpool.io/v1alpha1",
        ),
        ("apiVersion: sglpool.io/v1alpha1\nkind: InferencePool\nspec: {}\n", "metadata.name: is required"),
        ("a: .inf\n", "JSON cannot"),
        ("a: &x [*x]\n", "JSON cannot"),
    ],
)
def test_what_is_no_pool_is_refused_in_one_sentence(text: str, words: str) -> None:
    result = plan(text)

    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert words in line


def test_an_unquoted_revision_of_digits_is_refused_as_a_number() -> None:
    text = as_text(pools.manifest()).replace(f"'{pools.COMMIT}'", pools.COMMIT)
    result = plan(text)

    assert result.exit_code == 2
    assert "spec.model.source.huggingFace.revision: is 1: " in result.stderr


def test_a_date_in_a_label_stays_the_text_it_was() -> None:
    text = as_text(pools.manifest({"template": {"labels": {"since": "X"}}})).replace("since: X", "since: 2026-01-31")

    assert "2026-01-31" in plan(text, "-o", "yaml").stdout


def test_a_missing_file_is_one_sentence() -> None:
    result = CliRunner().invoke(app, ["plan", "-f", "no/such/file.yaml"])

    assert result.exit_code == 2
    assert result.stderr == "no/such/file.yaml: cannot be read: No such file or directory\n"
