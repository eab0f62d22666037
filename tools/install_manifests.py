"""Renders the chart for those without Helm: manifests/install/sglpool.yaml, with the chart's defaults.

Helm's own marks are taken off, so that nobody believes Helm manages these objects, and the namespace is added. The CRD
is in `crds/` already. Run by `make manifests`; a test holds the file to the chart.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from sglpool.cli.yamltext import to_yaml
from sglpool.sandbox import binaries

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "manifests/install/sglpool.yaml"
NAMESPACE = "sglpool-system"
HEADER = f"""\
# Rendered from charts/sglpool: do not edit, run `make manifests`. Install the CRD with it:
#   kubectl apply --server-side -f crds/ -f manifests/install/
# Other namespaces, images or settings: render the chart with your values, or put a kustomization over this file.
# `kubectl delete -f manifests/install/` removes the operator and namespace {NAMESPACE}; the CRD and all pools stay.
"""
_HELM = {"helm.sh/chart": None, "app.kubernetes.io/managed-by": "Helm"}


def rendered() -> str:
    """The text of the file."""
    helm = binaries.ensure(["helm"], say=lambda line: print(line, file=sys.stderr))["helm"]
    command = [helm, "template", "sglpool", ROOT / "charts/sglpool", "-n", NAMESPACE, "--kube-version", "1.32.0"]
    command += ["--no-hooks", "--set", "crds.install=false"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise SystemExit(f"helm: {done.stderr.strip()}")
    objects = [document for document in yaml.safe_load_all(done.stdout) if document]
    return HEADER + to_yaml([_namespace(), *map(_bare, objects)])


def _namespace() -> dict[str, Any]:
    labels = {"app.kubernetes.io/part-of": "sglpool", "pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}


def _bare(manifest: dict[str, Any]) -> dict[str, Any]:
    """The object without Helm's labels, those of its pods included."""
    labels = manifest["metadata"]["labels"]
    for mark, value in _HELM.items():
        if value is None or labels.get(mark) == value:
            labels.pop(mark, None)
    template = manifest.get("spec", {}).get("template")
    if template is not None:
        template |= _bare({"metadata": template["metadata"]})
    return manifest


if __name__ == "__main__":
    TARGET.write_text(rendered(), encoding="utf-8")
