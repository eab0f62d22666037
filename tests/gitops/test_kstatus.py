"""Flux, Helm and `kubectl wait` read a pool by kstatus: cli-utils' own code says what every state is."""

from __future__ import annotations

import itertools

import pytest

from sglpool.api.conditions import TABLE
from support.gitops import GitOps, Json
from support.kstatus import kstatus


def pool(ready: str, *, reconciling: str = "", stalled: str = "", observed: int = 3) -> Json:
    given = [("Ready", ready, TABLE["Ready"][ready].status)]
    given += [("Reconciling", reconciling, "True")] if reconciling else []
    given += [("Stalled", stalled, "True")] if stalled else []
    conditions = [{"type": t, "status": s, "reason": r, "message": "-"} for t, r, s in given]
    return {
        "apiVersion": "sglpool.io/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"name": "p", "namespace": "n", "generation": 3},
        "spec": {},
        "status": {"observedGeneration": observed, "conditions": conditions},
    }


@pytest.mark.parametrize("ready", TABLE["Ready"])
def test_only_a_ready_pool_is_current(gitops: GitOps, ready: str) -> None:
    expected = "Current" if TABLE["Ready"][ready].status == "True" else "InProgress"
    assert gitops.kstatus(pool(ready)) == expected


@pytest.mark.parametrize("stalled", TABLE["Stalled"])
def test_what_stalls_has_failed(gitops: GitOps, stalled: str) -> None:
    ready = stalled if stalled in TABLE["Ready"] else "ReplicasStarting"
    assert gitops.kstatus(pool(ready, stalled=stalled)) == "Failed"


def test_our_port_of_kstatus_says_the_same(gitops: GitOps) -> None:
    """The property tests ask the port, which is quick."""
    cases = itertools.product(
        ("AllReplicasReady", "CrashLoop", "Pending"), ("", "RollingOut"), ("", "Infeasible"), (2, 3)
    )
    for ready, reconciling, stalled, observed in cases:
        manifest = pool(ready, reconciling=reconciling, stalled=stalled, observed=observed)
        assert kstatus(manifest) == gitops.kstatus(manifest), manifest["status"]
    gone = pool("AllReplicasReady")
    gone["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert kstatus(gone) == gitops.kstatus(gone) == "Terminating"
