"""Argo CD: health of every state, and the actions, by the scripts that its configuration gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sglpool.api.conditions import TABLE
from support.gitops import ACTIONS, ARGOCD, GitOps
from support.golden import check_committed

Json = dict[str, Any]
CONFIG = ARGOCD / "argocd-cm.yaml"
HEALTH = {
    "AllReplicasReady": "Healthy",
    "Parked": "Healthy",
    "RolloutPaused": "Suspended",
    "CrashLoop": "Degraded",
    "ContainerConfigError": "Degraded",
    "ImagePullFailed": "Degraded",
    "ProgressDeadlineExceeded": "Degraded",
    "RolloutAborted": "Degraded",
    "RouterStuck": "Degraded",
}
"""By reason of Ready; what is not here is on its way, or Stalled, which decides first."""


def pool(ready: str = "", *, stalled: str = "", observed: int = 3, word: str = "") -> Json:
    conditions = []
    if ready:
        status = TABLE["Ready"][ready].status
        conditions.append({"type": "Ready", "status": status, "reason": ready, "message": f"{ready} it is"})
    if stalled:
        conditions.append({"type": "Stalled", "status": "True", "reason": stalled, "message": f"{stalled} stalls"})
    annotations = {"annotations": {"sglpool.io/rollout": word}} if word else {}
    return {
        "metadata": {"name": "p", "generation": 3, **annotations},
        "status": {"observedGeneration": observed, "conditions": conditions},
    }


@pytest.mark.parametrize("reason", TABLE["Ready"])
def test_every_reason_has_a_health_and_its_sentence(gitops: GitOps, reason: str) -> None:
    assert gitops.health(pool(reason)) == (HEALTH.get(reason, "Progressing"), f"{reason} it is")


@pytest.mark.parametrize("reason", TABLE["Stalled"])
def test_what_stalls_is_degraded_whatever_ready_says(gitops: GitOps, reason: str) -> None:
    ready = reason if reason in TABLE["Ready"] else "ReplicasStarting"
    assert gitops.health(pool(ready, stalled=reason)) == ("Degraded", f"{reason} stalls")


def test_a_change_that_nobody_has_looked_at_is_on_its_way(gitops: GitOps) -> None:
    status, message = gitops.health(pool("AllReplicasReady", observed=2))
    assert (status, message) == ("Progressing", "sglpool has not looked at the last change yet")
    assert gitops.health({"metadata": {"generation": 1}})[0] == "Progressing"
    assert gitops.health(pool())[0] == "Progressing"


def test_actions_say_the_words_that_the_operator_knows(gitops: GitOps) -> None:
    plain = pool("RollingOut")
    assert gitops.offered(plain) == {"pause", "abort"}
    paused = gitops.act("pause", plain)
    assert paused["metadata"]["annotations"]["sglpool.io/rollout"] == "pause"
    assert gitops.offered(paused) == {"resume", "abort"}
    aborted = gitops.act("abort", paused)
    assert aborted["metadata"]["annotations"]["sglpool.io/rollout"] == "abort"
    assert gitops.offered(aborted) == {"pause", "resume"}
    assert "sglpool.io/rollout" not in gitops.act("resume", aborted)["metadata"]["annotations"]
    assert gitops.act("pause", plain)["status"] == plain["status"], "nothing else is touched"


def test_a_failed_gate_can_be_tried_again(gitops: GitOps) -> None:
    failed = pool("GateFailed", word="resume")
    assert gitops.offered(failed) == {"pause", "abort", "retry-gate"}
    again = gitops.act("retry-gate", failed)["metadata"]["annotations"]["sglpool.io/rollout"]
    assert again.startswith("resume-")
    assert again != "resume"


def config() -> str:
    """Argo CD's ConfigMap with our scripts, for `kubectl patch` or a kustomize overlay."""

    def script(name: str) -> str:
        return (ARGOCD / f"{name}.lua").read_text(encoding="utf-8")

    def indent(text: str, by: int) -> str:
        return "".join(f"{' ' * by}{line}" if line.strip() else line for line in text.splitlines(keepends=True))

    actions = "discovery.lua: |\n" + indent(script("discovery"), 2) + "definitions:\n"
    for name in ACTIONS:
        actions += f"- name: {name}\n  action.lua: |\n" + indent(script(name), 4)
    head = """\
# What Argo CD should know of pools: add these two keys to its ConfigMap. Made from the .lua files beside this one.
apiVersion: v1
kind: ConfigMap
metadata:
  name: argocd-cm
  namespace: argocd
  labels:
    app.kubernetes.io/name: argocd-cm
    app.kubernetes.io/part-of: argocd
data:
"""
    keys = {"health": script("health"), "actions": actions}
    name = "resource.customizations.{}.sglpool.io_InferencePool"
    return head + "".join(f"  {name.format(key)}: |\n{indent(text, 4)}" for key, text in keys.items())


def test_the_configuration_is_made_from_the_scripts(regenerate: bool) -> None:
    check_committed(CONFIG, config(), regenerate=regenerate)
    data = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["data"]
    actions = yaml.safe_load(data["resource.customizations.actions.sglpool.io_InferencePool"])
    assert [action["name"] for action in actions["definitions"]] == list(ACTIONS)
    assert actions["discovery.lua"] == (ARGOCD / "discovery.lua").read_text(encoding="utf-8")


def test_scripts_are_all_used() -> None:
    assert {Path(name).stem for name in ARGOCD.glob("*.lua")} == {"health", "discovery", *ACTIONS}
