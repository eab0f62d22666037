"""What is wrong with pods, as reasons with a remedy: images, crash loops, deadlines, scheduling.

A chain of small checks per pod; the first that finds something speaks. Messages hold no counter that ticks, so
that a pod that fails for hours is reported once.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sglpool.api import names
from sglpool.api.pool import Pool
from sglpool.api.quantity import format_duration
from sglpool.plan.observed import ObservedPod

CRASH_RESTARTS = 3
"""Restarts after which a pod that is not ready counts as a crash loop, whatever state it is in this second."""

DEADLINE_SLACK_S = 300
"""Beyond engine.startupTimeout: image pull and weight checks come before the container's clock starts."""

_IMAGE_REASONS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
)
_CONFIG_REASONS = frozenset({"CreateContainerConfigError", "CreateContainerError"})

_ROUTER_IMAGES = "router.image or router.envoyImage"

_NO_NODE = ("node affinity", "node selector", "untolerated taint", "were unschedulable", "no nodes available")
"""What the scheduler says when no node may take the pod, however empty it is."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with pods: a reason of condition Progressing or Scheduled, and sentences for the user."""

    reason: str
    message: str


def pod_problem(pool: Pool, pods: Iterable[ObservedPod], *, now_s: float) -> Problem | None:
    """The first problem of pods that have a node, in order of severity."""
    broken = [pod for pod in pods if not (pod.ready or pod.terminating)]
    for reason, check in _CHAIN:
        found = [(pod, message) for pod in broken if (message := check(pool, pod, now_s))]
        if found:
            pod, message = found[0]
            return Problem(reason, f"{pod.name}: {message}{and_more(len(found))}")
    return None


def in_trouble(pod: ObservedPod) -> bool:
    """Whether a pod that is not ready will hardly become ready by itself: no node, no image, or a crash loop."""
    if pod.ready or pod.terminating:
        return False
    return bool(pod.unschedulable or pod.waiting[0]) or pod.restarts >= CRASH_RESTARTS


def deadline_s(pool: Pool, pods: Iterable[ObservedPod], *, now_s: float) -> float | None:
    """Seconds until the next pod passes its deadline, None when none can."""
    allowed_s = pool.spec.engine.startup_timeout + DEADLINE_SLACK_S
    waits = [pod.unready_since_s + allowed_s - now_s for pod in pods if pod.node and not (pod.ready or pod.terminating)]
    return min((wait for wait in waits if wait > 0), default=None)


def router_pod_problem(pods: Iterable[ObservedPod]) -> str:
    """What keeps a router pod from becoming ready, and the remedy; empty when it is only a matter of time."""
    for pod in sorted(pods, key=lambda pod: pod.name):
        if pod.ready or pod.terminating:
            continue
        reason, words = pod.waiting
        if reason in _IMAGE_REASONS:
            field = "router.sessionStore.managed.image" if pod.component == names.COMPONENT_STORE else _ROUTER_IMAGES
            return f"{pod.name}: image {words} cannot be pulled. Correct {field}, or add template.imagePullSecrets."
        if reason in _CONFIG_REASONS:
            return f"{pod.name}: its container cannot be made: {words}."
        if reason == "CrashLoopBackOff" or pod.restarts >= CRASH_RESTARTS:
            said = f': "{pod.last_words}"' if pod.last_words else ""
            return f"{pod.name}: a container ends again and again{said}. Read its log."
        if pod.unschedulable and not pod.node:
            return f"{pod.name} finds no node: {pod.unschedulable}"
    return ""


def schedule_problem(pods: Iterable[ObservedPod]) -> Problem | None:
    """Why the scheduler finds no node for a pod, told apart by what the user can do about it."""
    waiting = [pod for pod in pods if pod.unschedulable and not (pod.node or pod.terminating)]
    if not waiting:
        return None
    pod = waiting[0]
    gpus, gpu_type = pod.gpus, pod.gpu_type
    words = pod.unschedulable
    more = and_more(len(waiting))
    if "Insufficient nvidia.com/gpu" in words:
        return Problem(
            "InsufficientGPU",
            f"{pod.name} needs {gpus} free GPUs on one {gpu_type} node, and no such node has them{more}. Add "
            f"{gpu_type} nodes, free some, or lower the pool's replicas.",
        )
    if "Insufficient memory" in words or "Insufficient cpu" in words:
        return Problem(
            "InsufficientMemory",
            f"{pod.name} finds the GPUs on a {gpu_type} node, but not the host memory or CPU it requests{more}. Lower "
            "kvCache.hiCache.size or template.resources.requests, or free memory on the nodes.",
        )
    if any(sign in words for sign in _NO_NODE):
        return Problem(
            "NoMatchingNodes",
            f"{pod.name} may run only on {gpu_type} nodes, and the cluster has none that takes it{more}. Check that "
            "such nodes are not cordoned, their nvidia.com/gpu.product label and taints, template.nodeSelector and "
            "template.tolerations.",
        )
    return Problem("Unschedulable", f"{pod.name} finds no node{more}: {words}")


def _image(pool: Pool, pod: ObservedPod, now_s: float) -> str:
    del pool, now_s
    reason, image = pod.waiting
    if reason not in _IMAGE_REASONS:
        return ""
    return f"image {image} cannot be pulled. Correct engine.image, or add template.imagePullSecrets."


def _config(pool: Pool, pod: ObservedPod, now_s: float) -> str:
    del pool, now_s
    reason, words = pod.waiting
    if reason not in _CONFIG_REASONS:
        return ""
    return f"its container cannot be made: {words}. Create what is missing, or correct the pool's reference to it."


def _crash_loop(pool: Pool, pod: ObservedPod, now_s: float) -> str:
    del pool, now_s
    if pod.waiting[0] != "CrashLoopBackOff" and pod.restarts < CRASH_RESTARTS:
        return ""
    if pod.oom_killed:
        return "its container is killed for memory again and again. Raise the memory limit, or lower hiCache.size."
    code = "" if pod.last_exit is None else f" with exit code {pod.last_exit}"
    words = f': "{pod.last_words}"' if pod.last_words else ""
    return f"its container ends{code} again and again{words}. Read `kubectl logs {pod.name} --previous`."


def _deadline(pool: Pool, pod: ObservedPod, now_s: float) -> str:
    timeout_s = pool.spec.engine.startup_timeout
    if not pod.node or now_s < pod.unready_since_s + timeout_s + DEADLINE_SLACK_S:
        return ""
    return (
        f"it is not ready after engine.startupTimeout ({format_duration(timeout_s)}). Read `kubectl logs {pod.name}`, "
        "or raise the timeout if the model only loads slowly."
    )


_CHAIN: tuple[tuple[str, Callable[[Pool, ObservedPod, float], str]], ...] = (
    ("ImagePullFailed", _image),
    ("ContainerConfigError", _config),
    ("CrashLoop", _crash_loop),
    ("ProgressDeadlineExceeded", _deadline),
)
"""Reasons with their checks; a check returns its message, or nothing when the pod has no such trouble."""


def and_more(count: int) -> str:
    """How many others a message is about, for its end; empty for one alone."""
    return f" (and {count - 1} more)" if count > 1 else ""
