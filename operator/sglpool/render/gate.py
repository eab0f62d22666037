"""The gate of a roll-out: a Job with the user's test against the one replica of a new revision.

It fits Pod Security level `restricted` and has no rights in the cluster. Not here: when it runs and what follows from
its end (`plan.gate`).
"""

from __future__ import annotations

from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.api.pool import Gate, Pool
from sglpool.render.hashes import content_hash
from sglpool.render.metadata import child_metadata
from sglpool.render.router_pod import off_the_gpus, placement, pod_security

USER_ID = 65532
"""The test runs as nobody of this machine, whatever user its image names: level `restricted` takes no root."""
CONTAINER = "gate"


def gate_job_name(pool: Pool, gate: Gate, revision: str, attempt: int = 1) -> str:
    """Name of the Job that tests a revision with this test; another test is another Job, and so is another attempt."""
    name = names.gate_name(pool.name, content_hash([revision, gate.model_dump(mode="json", by_alias=True)]))
    return name if attempt == 1 else f"{name}-{attempt}"


def gate_job(pool: Pool, gate: Gate, *, revision: str, pod_uid: str, address: str, attempt: int = 1) -> Manifest:
    """The Job.

    Args:
        pool: The pool.
        gate: The test.
        revision: Revision under test.
        pod_uid: The replica that runs it.
        address: IP of that replica: its DNS name is not published before the Service counts it as ready.
        attempt: Which one it is: a test whose pod was taken away says nothing, and is made again.
    """
    labels = names.child_labels(pool.name, names.COMPONENT_GATE)
    annotations = {
        names.ANNOTATION_GATED: revision,
        names.ANNOTATION_GATE_POD: pod_uid,
        names.ANNOTATION_ROLLOUT: pool.annotations.get(names.ANNOTATION_ROLLOUT, ""),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": child_metadata(
            pool, name=gate_job_name(pool, gate, revision, attempt), labels=labels, annotations=annotations
        ),
        "spec": {
            # It is kept: that it failed is known from it alone. A test that fails once has failed.
            "backoffLimit": 0,
            # Told apart from that: its pod was evicted, preempted, or lost its node. Such a Job fails for this reason.
            "podFailurePolicy": {
                "rules": [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
            },
            "activeDeadlineSeconds": gate.timeout,
            "template": {
                "metadata": {"labels": labels},
                "spec": _pod_spec(pool, gate, address),
            },
        },
    }


def gate_record(*, name: str, namespace: str, proven: str, gated: str) -> Manifest:
    """What the field manager `sglpool-gate` applies to a StatefulSet: what is proven, and what has to be."""
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": {names.ANNOTATION_PROVEN: proven, names.ANNOTATION_GATED: gated},
        },
    }


def _pod_spec(pool: Pool, gate: Gate, address: str) -> Manifest:
    host = f"[{address}]" if ":" in address else address
    environment = {
        "OPENAI_BASE_URL": f"http://{host}:{names.ENGINE_PORT}/v1",
        "OPENAI_API_KEY": "none",  # the engine asks for none, and OpenAI's clients do not start without
        "MODEL": pool.spec.model.name,
        "SGLPOOL_POOL": pool.name,
        "SGLPOOL_NAMESPACE": pool.namespace,
    }
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(USER_ID),
        "affinity": {"nodeAffinity": off_the_gpus()},
        **placement(pool),
        "containers": [
            {
                "name": CONTAINER,
                "image": gate.image,
                "args": list(gate.args),
                "env": [{"name": name, "value": value} for name, value in environment.items()],
                "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                "terminationMessagePolicy": "FallbackToLogsOnError",
            }
        ],
    }
