"""Names: the API group, labels, annotations and the names of every child object.

One function per name, used everywhere, so that a name is never spelt or shortened twice. Not here: what the
children contain (`render`).
"""

from collections.abc import Mapping

GROUP = "sglpool.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "InferencePool"
PLURAL = "inferencepools"

MAX_POOL_NAME_LENGTH = 40
"""Longest pool name. A pod's revision label is `<pool>-<type>-<hash>` and labels end at 63 characters."""

# Labels on every child. Selectors use the first two and nothing else: labels of a selector can never change.
LABEL_POOL = f"{GROUP}/pool"
LABEL_GPU = f"{GROUP}/gpu-type"
LABEL_NAME = "app.kubernetes.io/name"
LABEL_COMPONENT = "app.kubernetes.io/component"
LABEL_PART_OF = "app.kubernetes.io/part-of"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_REVISION = "controller-revision-hash"
"""Kubernetes' own: the revision of its StatefulSet that a pod runs."""
MANAGED_BY = "sglpool"
MANAGED_SELECTOR = f"{LABEL_MANAGED_BY}={MANAGED_BY}"

# Annotations that the operator writes on its children.
ANNOTATION_SPEC_HASH = f"{GROUP}/spec-hash"
ANNOTATION_RENDER_HASH = f"{GROUP}/render-hash"
ANNOTATION_HICACHE_BYTES = f"{GROUP}/hicache-bytes"
# Annotations that the operator writes on engine pods for the router, which watches them.
ANNOTATION_DRAINING = f"{GROUP}/draining"
"""`true`: no new conversation comes here, and those that are here leave at their own pause."""
ANNOTATION_DRAIN_DEADLINE = f"{GROUP}/drain-deadline"
"""Unix seconds after which the rest of them move too."""
ANNOTATION_DRAIN_REASON = f"{GROUP}/drain-reason"
"""Why it has to go, for people."""
ANNOTATION_DRAIN_CAUSE = f"{GROUP}/drain-cause"
"""Why, for an operator that has just started, where nothing else in the cluster says it."""
ANNOTATION_UNPROVEN = f"{GROUP}/unproven"
"""`true`: a revision that has not passed its gate yet gets no traffic."""
# Annotations that the operator writes for a roll-out's gate: on StatefulSets, and on the gate's Job.
ANNOTATION_PROVEN = f"{GROUP}/proven-revision"
"""The revision that passed its gate, or served before there was one; `none` while no revision has."""
ANNOTATION_GATED = f"{GROUP}/gated-revision"
"""The revision that has to pass its gate, written before any replica gets it."""
PROVEN_NONE = "none"
ANNOTATION_RETURNED = f"{GROUP}/returned-from"
"""The revision that failed its gate, on a StatefulSet that got the template of the proven one back."""
ANNOTATION_GATE_POD = f"{GROUP}/gate-pod"
"""uid of the replica that a gate's Job tests."""
# Annotations that a user writes.
ANNOTATION_ROLLOUT = f"{GROUP}/rollout"
"""`pause`, `abort`, or `resume`, which may be told from a former one: `resume-2`. A gate's Job carries what it said."""
ANNOTATION_RENDER = f"{GROUP}/render"
RENDER_LATEST = "latest"
ANNOTATION_ADOPT = f"{GROUP}/adopt-object"

# Field managers of server-side apply: for templates and metadata, for replicas and partition, for what a gate found.
MANAGER_TEMPLATE = "sglpool"
MANAGER_SCALE = "sglpool-scale"
MANAGER_GATE = "sglpool-gate"

ENGINE_CONTAINER = "engine"
WEIGHTS_CONTAINER = "weights"
ENGINE_PORT = 30000

COMPONENT_ENGINE = "engine"
COMPONENT_ROUTER = "router"
COMPONENT_STORE = "valkey"
COMPONENT_GATE = "gate"
_APPLICATIONS: Mapping[str, str] = {COMPONENT_ENGINE: "sglang", COMPONENT_ROUTER: "sglpool-router"}
ENVOY_CONTAINER = "envoy"
PICKER_CONTAINER = "picker"
STORE_PORT = 6379

OPERATOR_LABELS: Mapping[str, str] = {LABEL_NAME: "sglpool", LABEL_COMPONENT: "operator"}
"""Labels of the operator's own pods, which whoever installs it must set: network policies let them in by these."""
MONITORING_LABELS: Mapping[str, str] = {LABEL_NAME: "prometheus"}
"""Labels by which network policies know a Prometheus; its operator and the usual charts set them."""


def statefulset_name(pool: str, gpu_type: str) -> str:
    """Name of the StatefulSet that holds a pool's replicas of one GPU type."""
    return f"{pool}-{gpu_type.lower()}"


def engine_name(pool: str) -> str:
    """Name shared by the headless Service, ServiceAccount and PodDisruptionBudget of a pool's engines."""
    return f"{pool}-engine"


def launch_configmap_name(pool: str, content_hash: str) -> str:
    """Name of an immutable ConfigMap with the scripts of one revision."""
    return f"{pool}-launch-{content_hash}"


def router_name(pool: str) -> str:
    """Name shared by the router's Deployment, Service, ServiceAccount, Role and what else it has one of."""
    return f"{pool}-router"


def router_configmap_name(pool: str, content_hash: str) -> str:
    """Name of an immutable ConfigMap with the settings of one revision of the router."""
    return f"{router_name(pool)}-{content_hash}"


def store_name(pool: str) -> str:
    """Name shared by Deployment, Service and NetworkPolicy of the Valkey that a pool keeps for its routers."""
    return f"{pool}-valkey"


def gate_name(pool: str, content_hash: str) -> str:
    """Name of the Job that tests one revision."""
    return f"{pool}-gate-{content_hash}"


def is_router_child(pool: str, kind: str, name: str) -> bool:
    """Whether a child exists only for the sake of the router, so that it goes when the router goes."""
    return name in {router_name(pool), store_name(pool)} or (kind, name) == ("NetworkPolicy", engine_name(pool))


def pool_labels(pool: str) -> dict[str, str]:
    """Labels that select everything of one pool."""
    return {LABEL_POOL: pool}


def child_labels(pool: str, component: str) -> dict[str, str]:
    """Labels of a child object of a pool."""
    return {
        LABEL_POOL: pool,
        LABEL_NAME: _APPLICATIONS.get(component, component),
        LABEL_COMPONENT: component,
        LABEL_PART_OF: "sglpool",
        LABEL_MANAGED_BY: MANAGED_BY,
    }


def component_selector(pool: str, component: str) -> dict[str, str]:
    """Labels that select all pods of one component of a pool."""
    return {LABEL_POOL: pool, LABEL_COMPONENT: component}


def engine_selector(pool: str, gpu_type: str) -> dict[str, str]:
    """Selector labels of one StatefulSet. They are immutable there: keep them few."""
    return {LABEL_POOL: pool, LABEL_COMPONENT: "engine", LABEL_GPU: gpu_type}


def pool_selector(pool: str) -> str:
    """Label selector of all engine pods of a pool, in the text form that the scale subresource wants."""
    return f"{LABEL_POOL}={pool},{LABEL_COMPONENT}=engine"


def ordinal_of(pod_name: str) -> int:
    """Ordinal of a StatefulSet's pod, -1 for a name that has none."""
    tail = pod_name.rpartition("-")[2]
    return int(tail) if tail.isdecimal() else -1


def wants_latest_render(annotations: Mapping[str, str]) -> bool:
    """Whether the user asked for this sglpool version's rendering (`sglpool.io/render: latest`)."""
    return annotations.get(ANNOTATION_RENDER) == RENDER_LATEST
