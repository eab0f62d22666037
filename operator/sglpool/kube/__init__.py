"""The Kubernetes API: a small async port on plain dicts, our error classes, leader election and Events.

The only package that imports the Kubernetes client. Nothing here knows what a pool is.
"""

from sglpool.kube.client import KubeClient
from sglpool.kube.errors import (
    Conflict,
    Forbidden,
    Invalid,
    KubeConfigError,
    KubeError,
    NotFound,
    Transient,
)
from sglpool.kube.events import EventRecorder
from sglpool.kube.lease import LeaderLease, LeaseLost, LeaseTimes
from sglpool.kube.port import KubePort
from sglpool.kube.resources import Manifest, Resource, resource_for
from sglpool.kube.transport import proxy_for

__all__ = [
    "Conflict",
    "EventRecorder",
    "Forbidden",
    "Invalid",
    "KubeClient",
    "KubeConfigError",
    "KubeError",
    "KubePort",
    "LeaderLease",
    "LeaseLost",
    "LeaseTimes",
    "Manifest",
    "NotFound",
    "Resource",
    "Transient",
    "proxy_for",
    "resource_for",
]
