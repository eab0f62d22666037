"""The operator's account as the chart makes it, on a real API server, with a kubeconfig that holds its token."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from support.helm import Helm, helm_binary
from support.kubectl import Kubectl

Rule = tuple[str, str, str]
"""API group, resource and verb."""

_KINDS = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}


@dataclass
class ChartAccount:
    """ServiceAccount, roles and bindings of the chart; its rules can be taken away one by one.

    Attributes:
        kubectl: The cluster, as its administrator.
        namespace: Namespace of the account.
        kubeconfig: Holds its token.
    """

    kubectl: Kubectl
    namespace: str
    kubeconfig: Path
    objects: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def create(cls, kubectl: Kubectl, namespace: str, folder: Path, *options: str) -> ChartAccount:
        """Apply what the chart renders for the values in `options`, and ask for a token."""
        release = ("--set", f"fullnameOverride={namespace}", *options)
        rendered = Helm(helm_binary(4)).template(*release, namespace=namespace)
        objects = [o for o in rendered if o["kind"] in _KINDS and "helm.sh/hook" not in str(o["metadata"])]
        account = cls(kubectl, namespace, folder / "account.kubeconfig", objects)
        account._apply(*objects)
        token = kubectl("create", "token", namespace, "-n", namespace, "--duration=2h").strip()
        config = yaml.safe_load(kubectl.kubeconfig.read_text())
        config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
        account.kubeconfig.write_text(yaml.safe_dump(config))
        return account

    def rules(self) -> list[Rule]:
        """Every rule of the operator's main role."""
        rules = self._main()["rules"]
        return [
            (g, r, v) for rule in rules for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]
        ]

    def take(self, *lost: Rule) -> None:
        """Leave the account everything but these."""
        kept = [rule for rule in self.rules() if rule not in lost]
        assert len(kept) == len(self.rules()) - len(lost), f"the chart does not grant all of {lost}"
        rules = [{"apiGroups": [group], "resources": [resource], "verbs": [verb]} for group, resource, verb in kept]
        self._apply({**self._main(), "rules": rules})

    def give_back(self) -> None:
        """Everything that the chart grants."""
        self._apply(self._main())

    def delete(self) -> None:
        """Remove what belongs to no namespace."""
        for manifest in self.objects:
            if manifest["kind"].startswith("Cluster"):
                self.kubectl("delete", manifest["kind"], manifest["metadata"]["name"], "--ignore-not-found")

    def _main(self) -> dict[str, Any]:
        """The role with the rules for the objects of a namespace."""
        return next(
            o for o in self.objects if o["kind"] in ("ClusterRole", "Role") and o["metadata"]["name"] == self.namespace
        )

    def _apply(self, *manifests: dict[str, Any]) -> None:
        text = "\n---\n".join(json.dumps(manifest) for manifest in manifests)
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=text)
