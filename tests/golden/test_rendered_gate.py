"""What the Job of a gate is, byte for byte."""

from __future__ import annotations

from pathlib import Path

import yaml

from sglpool import render
from sglpool.api import names
from sglpool.api.validate import load_pool
from support.golden import check_committed

HERE = Path(__file__).parent
SAMPLE = HERE.parents[1] / "manifests" / "samples" / "everything.yaml"
EXPECTED = HERE / "rendered-gate" / "everything.yaml"


def test_the_job_of_a_gate_is_as_expected(regenerate):
    manifest = yaml.safe_load(SAMPLE.read_text(encoding="utf-8"))
    manifest["metadata"]["annotations"] = {names.ANNOTATION_ROLLOUT: "resume-2"}
    pool = load_pool(manifest)
    gate = pool.spec.rollout.gate
    assert gate is not None
    job = render.gate_job(pool, gate, revision="everything-b200-7f9c", pod_uid="pod-uid", address="fd00::7")
    text = yaml.safe_dump(job, sort_keys=False, width=120)
    check_committed(EXPECTED, text, regenerate=regenerate)


def test_another_revision_or_another_test_is_another_job():
    pool = load_pool(yaml.safe_load(SAMPLE.read_text(encoding="utf-8")))
    gate = pool.spec.rollout.gate
    assert gate is not None
    name = render.gate_job_name(pool, gate, "r1")
    assert name == render.gate_job_name(pool, gate, "r1")
    assert len({name, render.gate_job_name(pool, gate, "r2")}) == 2
    assert name != render.gate_job_name(pool, gate.model_copy(update={"args": ("--other",)}), "r1")
    assert len(names.gate_name("p" * names.MAX_POOL_NAME_LENGTH, "0123456789")) <= 63
