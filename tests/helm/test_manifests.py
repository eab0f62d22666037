"""The manifests for those without Helm are the chart's."""

from __future__ import annotations

import yaml
from tools.install_manifests import TARGET, rendered

from support.helm import Helm


def test_the_committed_file_is_current(helm4: Helm) -> None:
    assert TARGET.read_text(encoding="utf-8") == rendered(), "run `make manifests`"


def test_nothing_in_it_says_that_helm_manages_it() -> None:
    documents = list(yaml.safe_load_all(TARGET.read_text(encoding="utf-8")))
    assert documents[0]["kind"] == "Namespace"
    assert "helm" not in yaml.safe_dump(documents).lower()
