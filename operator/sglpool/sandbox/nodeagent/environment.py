"""The variables and the command line of a container: references read, `$(NAME)` expanded, as a kubelet does it.

Not here: which image variables there are, and how a process gets them.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from urllib.parse import urlsplit

from sglpool.api.quantity import amount
from sglpool.sandbox.apiserver import Manifest
from sglpool.sandbox.images import Image
from sglpool.sandbox.nodeagent.contracts import Objects, StartFailed

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CONFIG_ERROR = "CreateContainerConfigError"
_REFERENCE = re.compile(r"\$(?:\$|\(([^()]*)\))")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")
# The whole word: not 10.0.0.0, and not the network 0.0.0.0/0.
_ANY_ADDRESS = re.compile(r"(?<![\w.])0\.0\.0\.0(?![\w.]|/\d)")
PROGRAMS = (".py", ".sh", ".lua")
_ANY_ADDRESS_BYTES = re.compile(_ANY_ADDRESS.pattern.encode())


def on_pod_address(text: str, pod_ip: str) -> str:
    """Write the pod's address where a text says 0.0.0.0.

    All pods of a sandbox share the loopback interface of one machine, so a server that listens on every address
    would take its port from all other pods. This is the one thing that the agent changes in a pod: in command lines,
    variables and the settings in mounted ConfigMaps, and only the whole word. Secrets stay as they are, and so do
    programs (`PROGRAMS`), which may speak of the address in other senses.
    """
    return _ANY_ADDRESS.sub(pod_ip, text)


def bytes_on_pod_address(content: bytes, pod_ip: str) -> bytes:
    """As `on_pod_address`, for the content of a mounted file."""
    return _ANY_ADDRESS_BYTES.sub(pod_ip.encode(), content)


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by its value; an unknown name stays as written, and `$$` is one dollar sign."""

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        return "$" if name is None else variables.get(name, match.group(0))

    return _REFERENCE.sub(value, text)


def command_line(container: Manifest, image: Image, variables: Mapping[str, str], pod_ip: str) -> list[str]:
    """Program and arguments.

    Raises:
        StartFailed: Neither the container nor its image names a program.
    """
    own: Sequence[str] = container.get("command") or []
    words = [*(own or image.command), *(container.get("args") or [])]
    if not words:
        raise StartFailed("CreateContainerError", f"container {container['name']}: no command specified")
    return [on_pod_address(expand(word, variables), pod_ip) for word in words]


async def variables_of(
    pod: Manifest, container: Manifest, *, objects: Objects, image: Image, pod_ip: str, api_server: str
) -> dict[str, str]:
    """All variables of a container; none comes from the agent's own environment.

    Raises:
        StartFailed: `CreateContainerConfigError`, when something is missing that a variable is read from.
    """
    api = urlsplit(api_server)
    variables = {
        "HOME": "/root",
        "HOSTNAME": hostname(pod),
        **image.env,
        "KUBERNETES_SERVICE_HOST": api.hostname or "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(api.port or 443),
        "KUBERNETES_SERVICE_PORT_HTTPS": str(api.port or 443),
    }
    reader = _References(pod, container, objects, pod_ip)
    for source in container.get("envFrom") or []:
        variables |= await reader.all_of(source)
    for entry in container.get("env") or []:
        value = await reader.value_of(entry, variables)
        if value is not None:
            variables[entry["name"]] = value
    # The image's programs come first, as they would lie in /usr/bin of a real image.
    variables["PATH"] = f"{image.path}:{variables.get('PATH', DEFAULT_PATH)}"
    return variables


def hostname(pod: Manifest) -> str:
    """The host name inside the pod, at most 63 characters as the kernel and Kubernetes want it."""
    name: str = pod["spec"].get("hostname") or pod["metadata"]["name"]
    return name[:63].rstrip("-.")


class _References:
    """Reads what variables of one container refer to; each object once."""

    def __init__(self, pod: Manifest, container: Manifest, objects: Objects, pod_ip: str) -> None:
        self._pod = pod
        self._container = container
        self._objects = objects
        self._pod_ip = pod_ip
        self._namespace: str = pod["metadata"]["namespace"]
        self._read: dict[tuple[str, str], Manifest | None] = {}

    async def all_of(self, source: Manifest) -> dict[str, str]:
        """The variables of one `envFrom` entry."""
        kind = "Secret" if "secretRef" in source else "ConfigMap"
        reference = source["secretRef" if kind == "Secret" else "configMapRef"]
        found = await self._find(kind, reference["name"])
        if found is None:
            if reference.get("optional"):
                return {}
            raise StartFailed(_CONFIG_ERROR, _not_found(kind, reference["name"]))
        prefix = source.get("prefix", "")
        return {f"{prefix}{key}": self._text(kind, content) for key, content in _data(kind, found).items()}

    async def value_of(self, entry: Manifest, variables: Mapping[str, str]) -> str | None:
        """The value of one `env` entry; None when it refers to something optional that is not there."""
        source = entry.get("valueFrom")
        if not source:
            return on_pod_address(expand(entry.get("value", ""), variables), self._pod_ip)
        if "fieldRef" in source:
            return field_value(self._pod, source["fieldRef"]["fieldPath"], self._pod_ip)
        if "resourceFieldRef" in source:
            return resource_value(self._container, source["resourceFieldRef"])
        for kind, key in (("ConfigMap", "configMapKeyRef"), ("Secret", "secretKeyRef")):
            if key in source:
                return await self._key(kind, source[key])
        raise StartFailed(_CONFIG_ERROR, f"variable {entry['name']}: valueFrom.{next(iter(source))} is not supported")

    async def _key(self, kind: str, reference: Manifest) -> str | None:
        name, key = reference["name"], reference["key"]
        found = await self._find(kind, name)
        if found is not None and key in (data := _data(kind, found)):
            return self._text(kind, data[key])
        if reference.get("optional"):
            return None
        if found is None:
            raise StartFailed(_CONFIG_ERROR, _not_found(kind, name))
        raise StartFailed(_CONFIG_ERROR, f"couldn't find key {key} in {kind} {self._namespace}/{name}")

    async def _find(self, kind: str, name: str) -> Manifest | None:
        if (kind, name) not in self._read:
            get = self._objects.get_secret if kind == "Secret" else self._objects.get_config_map
            self._read[kind, name] = await get(self._namespace, name)
        return self._read[kind, name]

    def _text(self, kind: str, content: bytes) -> str:
        text = content.decode("utf-8", "surrogateescape")
        return text if kind == "Secret" else on_pod_address(text, self._pod_ip)


def data_of(found: Manifest, *, secret: bool) -> dict[str, bytes]:
    """The keys of a ConfigMap or Secret, decoded."""
    plain: Mapping[str, str] = found.get("data") or {}
    if secret:
        return {key: base64.b64decode(value) for key, value in plain.items()}
    binary: Mapping[str, str] = found.get("binaryData") or {}
    return {
        **{key: value.encode() for key, value in plain.items()},
        **{key: base64.b64decode(value) for key, value in binary.items()},
    }


def _data(kind: str, found: Manifest) -> dict[str, bytes]:
    return data_of(found, secret=kind == "Secret")


def _not_found(kind: str, name: str) -> str:
    return f'{kind.lower()} "{name}" not found'


def field_value(pod: Manifest, path: str, pod_ip: str) -> str:
    """What a `fieldRef` of a variable or a downward API file says.

    Raises:
        StartFailed: There is no such field for this purpose.
    """
    metadata = pod["metadata"]
    subscript = _SUBSCRIPT.fullmatch(path)
    if subscript:
        return str((metadata.get(subscript.group(1)) or {}).get(subscript.group(2), ""))
    status = pod.get("status") or {}
    fields = {
        "metadata.name": metadata.get("name"),
        "metadata.namespace": metadata.get("namespace"),
        "metadata.uid": metadata.get("uid"),
        "spec.nodeName": pod["spec"].get("nodeName"),
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", "default"),
        "status.podIP": pod_ip,
        "status.podIPs": pod_ip,
        "status.hostIP": status.get("hostIP", pod_ip),
        "status.hostIPs": status.get("hostIP", pod_ip),
        "metadata.labels": _lines(metadata.get("labels")),
        "metadata.annotations": _lines(metadata.get("annotations")),
    }
    if path not in fields:
        raise StartFailed(_CONFIG_ERROR, f"unsupported fieldPath: {path}")
    return str(fields[path] or "")


def _lines(pairs: Mapping[str, str] | None) -> str:
    # As a kubelet: quoted like a string of Go, which for these texts is how JSON quotes.
    return "\n".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in sorted((pairs or {}).items()))


def resource_value(container: Manifest, reference: Manifest) -> str:
    """What a `resourceFieldRef` says: whole units of the divisor, rounded up; without a limit what the machine has.

    Raises:
        StartFailed: The divisor is no number.
    """
    kind, _, resource = str(reference["resource"]).partition(".")
    resources = container.get("resources") or {}
    value = (resources.get(kind) or {}).get(resource)
    if value is None and kind == "limits":
        value = {"cpu": str(os.cpu_count() or 1), "memory": str(_machine_memory_bytes())}.get(resource)
    divisor = amount(str(reference.get("divisor") or "1")) or Decimal(1)
    number = amount(value) if value is not None else Decimal(0)
    if number is None:
        raise StartFailed(_CONFIG_ERROR, f"resources.{kind}.{resource}: {value!r} is not a quantity")
    return str(int((number / divisor).to_integral_value(rounding=ROUND_CEILING)))


def _machine_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
