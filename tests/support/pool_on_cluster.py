"""A pool on a real cluster, as a user handles it: kubectl in, objects and conditions out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from support.kubectl import Kubectl
from support.waiting import wait_until

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def small_pool(name: str, **spec: Any) -> dict[str, Any]:
    """A pool whose pods fit anywhere: one GPU a replica, B200.

    Fake pods say nothing of their load, and a replica that may have conversations is kept until its deadline: a short
    one.
    """
    rollout = {"drainTimeout": "1s", **spec.pop("rollout", {})}
    return {
        "apiVersion": "sglpool.io/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"name": name},
        "spec": {
            "model": {
                "name": "gpt-oss-120b",
                "profile": "gpt-oss-120b",
                "source": {"huggingFace": {"repo": "openai/gpt-oss-120b", "revision": COMMIT}},
            },
            "tensorParallelSize": 1,
            "kvCache": {"dtype": "bf16"},
            "gpus": [{"type": "B200"}],
            "template": {"annotations": {"sandbox.sglpool.io/load-delay": "1s"}},
            "rollout": rollout,
            **({"replicas": 1} if "autoscaling" not in spec else {}),
            **spec,
        },
    }


@dataclass
class ClusterPool:
    """One pool in one namespace."""

    kubectl: Kubectl
    namespace: str
    manifest: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    def apply(self, **spec: Any) -> None:
        """Apply the pool, with fields of spec replaced; None removes one."""
        for key, value in spec.items():
            if value is None:
                self.manifest["spec"].pop(key, None)
            else:
                self.manifest["spec"][key] = value
        self.kubectl("apply", "-n", self.namespace, "-f", "-", input=json.dumps(self.manifest))

    def get(self) -> dict[str, Any]:
        return self.kubectl.json("get", "sglpool", self.name, "-n", self.namespace)

    def condition(self, kind: str) -> dict[str, Any]:
        conditions = (self.get().get("status") or {}).get("conditions") or []
        return next((c for c in conditions if c["type"] == kind), {})

    def wait_for(self, kind: str, *, reason: str, timeout_s: float = 60) -> dict[str, Any]:
        """Wait until a condition of the current generation has a reason; return the condition."""

        def holds() -> dict[str, Any] | None:
            pool = self.get()
            found = next((c for c in (pool.get("status") or {}).get("conditions") or [] if c["type"] == kind), {})
            current = found.get("observedGeneration") == pool["metadata"]["generation"]
            return found if current and found.get("reason") == reason else None

        def describe() -> str:
            status = json.dumps(self.get().get("status"), indent=1)
            return f"{kind} of pool {self.name} is {reason}; it is {status}; its pods: {self.containers()}"

        found = wait_until(holds, timeout_s=timeout_s, describe=describe, interval_s=0.2)
        assert found is not None
        return found

    def wait_ready(self, timeout_s: float = 60) -> None:
        self.wait_for("Ready", reason="AllReplicasReady", timeout_s=timeout_s)

    def statefulset(self, gpu_type: str = "b200") -> dict[str, Any]:
        name = f"{self.name}-{gpu_type}"
        return self.kubectl.json("get", "statefulset", name, "-n", self.namespace, "--show-managed-fields")

    def pods(self) -> dict[str, dict[str, Any]]:
        """Engine pods of the pool by name."""
        labels = f"sglpool.io/pool={self.name},app.kubernetes.io/component=engine"
        items = self.kubectl.json("get", "pods", "-n", self.namespace, "-l", labels)["items"]
        return {pod["metadata"]["name"]: pod for pod in items}

    def uids(self) -> dict[str, str]:
        """uid of each engine pod by name."""
        return {name: pod["metadata"]["uid"] for name, pod in self.pods().items()}

    def containers(self) -> dict[str, list[Any]]:
        """What each container of each engine pod does, for messages."""
        found = {}
        for name, pod in self.pods().items():
            kinds = ("initContainerStatuses", "containerStatuses")
            states = [c for kind in kinds for c in pod["status"].get(kind) or ()]
            found[name] = [(c["name"], c["ready"], c["restartCount"], c["state"]) for c in states]
        return found

    def router_address(self) -> str:
        """Where its one router pod answers."""
        labels = f"sglpool.io/pool={self.name},app.kubernetes.io/component=router"
        (pod,) = self.kubectl.json("get", "pods", "-n", self.namespace, "-l", labels)["items"]
        return f"{pod['status']['podIP']}:8000"

    def events(self) -> dict[str, list[str]]:
        """Messages of its Events by reason."""
        found: dict[str, list[str]] = {}
        for event in self.kubectl.json("get", "events", "-n", self.namespace)["items"]:
            if (event["involvedObject"]["kind"], event["involvedObject"]["name"]) == ("InferencePool", self.name):
                found.setdefault(event["reason"], []).append(event["message"])
        return found

    def revisions(self) -> dict[str, str]:
        """Revision of each pod by name."""
        return {name: pod["metadata"]["labels"]["controller-revision-hash"] for name, pod in self.pods().items()}

    def versions(self) -> dict[str, str]:
        """resourceVersion of every object of the pool, to see that nothing was written."""
        kinds = "statefulsets,services,serviceaccounts,poddisruptionbudgets,configmaps,controllerrevisions"
        items = self.kubectl.json("get", kinds, "-n", self.namespace, "-l", f"sglpool.io/pool={self.name}")["items"]
        return {f"{i['kind']}/{i['metadata']['name']}": i["metadata"]["resourceVersion"] for i in items}


def is_ready(pod: dict[str, Any]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))


def mark(pool: ClusterPool, name: str) -> tuple[str, str] | None:
    """The uid of a pod that is being emptied, and its deadline; None of any other."""
    metadata = pool.pods().get(name, {}).get("metadata", {})
    deadline = (metadata.get("annotations") or {}).get("sglpool.io/drain-deadline")
    return (metadata["uid"], deadline) if deadline is not None else None


def is_gone(pool: ClusterPool, name: str, begun: tuple[str, str]) -> bool:
    """Whether a pod that was being emptied is going or gone; until then its mark has to stand, to the same deadline."""
    pod = pool.pods().get(name)
    if pod is None or pod["metadata"]["uid"] != begun[0] or "deletionTimestamp" in pod["metadata"]:
        return True
    assert (pod["metadata"].get("annotations") or {}).get("sglpool.io/drain-deadline") == begun[1]
    return False


PoolMaker = Callable[..., ClusterPool]
"""Creates a small pool, with fields of spec replaced."""

NodeMaker = Callable[..., dict[str, Any]]
"""Adds nodes by name, and returns the template of pods that only they take."""
