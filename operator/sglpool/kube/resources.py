"""The resource types that sglpool works with, and where they live under the API server's root.

A fixed table instead of discovery: nothing to fetch at start, nothing to go stale.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import quote

from sglpool.api import names

Manifest: TypeAlias = dict[str, Any]
"""A Kubernetes object as the API server sends and takes it."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource type.

    Attributes:
        group: API group, empty for the core group.
        version: version within the group.
        plural: name in URLs.
        kind: name in manifests.
        namespaced: whether its objects live in a namespace.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """`apiVersion` of its manifests."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path of an object, or of a list when `name` is None.

        Args:
            namespace: the namespace; None for cluster-scoped objects and for a list over all namespaces.
            name: the object's name.
            subresource: such as `status`.

        Raises:
            ValueError: a name without the namespace that it needs, an empty name, or a namespace for a
                cluster-scoped resource.
        """
        if namespace is not None and not self.namespaced:
            raise ValueError(f"{self.kind} is cluster-scoped: it has no namespace {namespace!r}")
        if name is not None and (not name or (self.namespaced and not namespace)):
            raise ValueError(f"{self.kind}: needs a name and a namespace, not {name!r} in {namespace!r}")
        path = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if namespace:
            path += f"/namespaces/{quote(namespace, safe='')}"
        path += f"/{self.plural}"
        if name is not None:
            path += f"/{quote(name, safe='')}"
        return f"{path}/{subresource}" if subresource else path


POOLS = Resource(names.GROUP, names.VERSION, names.PLURAL, names.KIND)
STATEFULSETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
CONTROLLER_REVISIONS = Resource("apps", "v1", "controllerrevisions", "ControllerRevision")
JOBS = Resource("batch", "v1", "jobs", "Job")
PODS = Resource("", "v1", "pods", "Pod")
SERVICES = Resource("", "v1", "services", "Service")
CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
EVENTS = Resource("", "v1", "events", "Event")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
POD_DISRUPTION_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role")
ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
CLUSTER_ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False)
CLUSTER_ROLE_BINDINGS = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False
)
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)

# Read by name and never written, so it is not among those that manifests are made of.
SECRETS = Resource("", "v1", "secrets", "Secret")

# Created to be answered, and never stored.
ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)

ALL_RESOURCES: tuple[Resource, ...] = (
    POOLS,
    STATEFULSETS,
    DEPLOYMENTS,
    CONTROLLER_REVISIONS,
    JOBS,
    PODS,
    SERVICES,
    CONFIGMAPS,
    SERVICE_ACCOUNTS,
    EVENTS,
    NODES,
    NAMESPACES,
    POD_DISRUPTION_BUDGETS,
    NETWORK_POLICIES,
    LEASES,
    ROLES,
    ROLE_BINDINGS,
    CLUSTER_ROLES,
    CLUSTER_ROLE_BINDINGS,
    PRIORITY_CLASSES,
    CRDS,
)
_BY_TYPE = {(resource.api_version, resource.kind): resource for resource in (*ALL_RESOURCES, ACCESS_REVIEWS)}


def resource_for(manifest: Mapping[str, Any]) -> Resource:
    """The resource type of a manifest, by its `apiVersion` and `kind`.

    Raises:
        ValueError: for a type that is not in the table.
    """
    api_version, kind = manifest.get("apiVersion"), manifest.get("kind")
    resource = _BY_TYPE.get((str(api_version), str(kind)))
    if resource is None:
        raise ValueError(f"apiVersion {api_version!r} with kind {kind!r} is not a type that sglpool works with")
    return resource
