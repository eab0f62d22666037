"""`sglpool crd`: the CustomResourceDefinition as a file, plain or as a template of the Helm chart.

Not here: what is in it (`api.crd`).
"""

from sglpool.api.crd import build_crd
from sglpool.cli.yamltext import to_yaml

_HEADER = "# Generated from the models in operator/sglpool/api: do not edit, run `make crd`.\n"

_NAME_LINE = "  name: inferencepools.sglpool.io\n"

_KEEP = """\
  {{- if .Values.crds.keep }}
  annotations:
    # Helm's word for it, and Argo CD's.
    helm.sh/resource-policy: keep
    argocd.argoproj.io/sync-options: Delete=false,Prune=false
  {{- end }}
"""


def crd_text() -> str:
    """The CRD as one YAML document."""
    return _HEADER + to_yaml([build_crd()])


def chart_text() -> str:
    """The CRD as a template: installed when `crds.install`, kept by Helm and Argo CD when `crds.keep`.

    A chart's `crds/` folder would be installed once and never upgraded; a template is upgraded with the chart.

    Raises:
        ValueError: A text of the CRD would be taken for a template expression.
    """
    plain = to_yaml([build_crd()]).removeprefix("---\n")
    if "{{" in plain:
        raise ValueError("a description or rule of the CRD holds '{{', which Helm would evaluate: reword it")
    kept = plain.replace(_NAME_LINE, _NAME_LINE + _KEEP, 1)
    return f"{_HEADER}{{{{- if .Values.crds.install }}}}\n{kept}{{{{- end }}}}\n"
