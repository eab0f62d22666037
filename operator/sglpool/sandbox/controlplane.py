"""The command lines of the processes, and how to tell that each of them serves.

Everything listens on loopback and keeps its data under the sandbox's folder. Flags that differ from a
production cluster say why.
"""

from __future__ import annotations

import random
import socket
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sglpool.sandbox.apiserver import ApiServer
from sglpool.sandbox.certificates import Certificates
from sglpool.sandbox.errors import SandboxError
from sglpool.sandbox.nodes import KWOK_ANNOTATION
from sglpool.sandbox.processes import Process

PORTS = ("etcd", "etcd-peer", "apiserver", "controller-manager", "scheduler", "kwok", "operator")
READY_LIMIT_S = 90.0
NODE_AGENT = "node-agent"
AGENT_READY = "agent/ready"
"""Below the sandbox's folder: exists while the node agent serves."""
NODE_GRACE_S = 20
"""A node whose lease is not renewed for this long is NotReady (a production default is 50 s)."""
NODE_LEASE_S = 20
"""kwok renews at a quarter of this."""
EVICTION_S = 10
"""Pods that name no toleration of their own leave a NotReady node after this long (production: 300 s)."""
CONTROLLERS = (
    "statefulset-controller",
    "deployment-controller",
    "replicaset-controller",
    "job-controller",
    "endpointslice-controller",
    "disruption-controller",
    "garbage-collector-controller",
    "pod-garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
    "root-ca-certificate-publisher-controller",
    "node-lifecycle-controller",
    "taint-eviction-controller",
)
_PROBE_LIMIT_S = 2.0
# Below the range from which the kernel takes ports for outgoing connections.
_PORT_RANGE = (20000, 32000)


@dataclass(frozen=True, slots=True)
class Layout:
    """What the command lines need to know.

    Attributes:
        root: The sandbox's folder.
        binaries: Path of each program.
        ports: Port of each listener in `PORTS`.
        certificates: The authority and the administrator's pair.
    """

    root: Path
    binaries: Mapping[str, Path]
    ports: Mapping[str, int]
    certificates: Certificates

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.root / "kubeconfig"

    @property
    def server(self) -> str:
        """Address of the API server."""
        return f"https://127.0.0.1:{self.ports['apiserver']}"


def free_ports() -> dict[str, int]:
    """A free loopback port for every listener.

    Raises:
        SandboxError: The machine has none left in the range.
    """
    ports: dict[str, int] = {}
    for _ in range(1000):
        port = random.randrange(*_PORT_RANGE)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in ports.values():
            ports[PORTS[len(ports)]] = port
        if len(ports) == len(PORTS):
            return ports
    raise SandboxError(f"no free loopback ports between {_PORT_RANGE[0]} and {_PORT_RANGE[1]}")


def control_plane(layout: Layout, *, agent: bool) -> list[Process]:
    """The processes in the order of their start; the last one keeps the nodes: the node agent, or kwok."""
    return [
        _etcd(layout),
        _api_server(layout),
        _kubernetes(layout, "controller-manager", _controller_manager_flags(layout, agent=agent)),
        _kubernetes(layout, "scheduler", []),
        node_agent(layout.root)
        if agent
        else kwok(
            binary=layout.binaries["kwok"],
            kubeconfig=layout.kubeconfig,
            stages=layout.root / "stages.yaml",
            port=layout.ports["kwok"],
        ),
    ]


def _etcd(layout: Layout) -> Process:
    client = f"http://127.0.0.1:{layout.ports['etcd']}"
    peer = f"http://127.0.0.1:{layout.ports['etcd-peer']}"
    flags = [
        f"--data-dir={layout.root / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",  # nothing here has to survive a power cut
        "--log-level=warn",
    ]
    command: list[str | Path] = [layout.binaries["etcd"], *flags]
    return _process("etcd", command, home=layout.root, ready=_serves(f"{client}/health"))


def _api_server(layout: Layout) -> Process:
    pair = layout.certificates
    flags = [
        f"--etcd-servers=http://127.0.0.1:{layout.ports['etcd']}",
        "--bind-address=127.0.0.1",
        f"--secure-port={layout.ports['apiserver']}",
        f"--cert-dir={layout.root / 'apiserver'}",
        f"--tls-cert-file={pair.certificate}",
        f"--tls-private-key-file={pair.key}",
        f"--client-ca-file={pair.ca}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pair.key}",
        f"--service-account-signing-key-file={pair.key}",
        "--service-cluster-ip-range=10.0.0.0/16",
        "--authorization-mode=RBAC",
        "--allow-privileged=true",
        "--kubelet-preferred-address-types=InternalIP",  # names of nodes mean nothing here
        "--endpoint-reconciler-type=none",  # its own address is loopback, which an endpoint may not be
        f"--default-not-ready-toleration-seconds={EVICTION_S}",
        f"--default-unreachable-toleration-seconds={EVICTION_S}",
    ]

    def ready() -> str:
        try:
            return "" if ApiServer(layout.kubeconfig).text("/readyz") == "ok" else "/readyz is not ok"
        except SandboxError as error:
            return str(error)

    command: list[str | Path] = [layout.binaries["kube-apiserver"], *flags]
    return _process("kube-apiserver", command, home=layout.root, ready=ready)


def _controller_manager_flags(layout: Layout, *, agent: bool) -> list[str]:
    pair = layout.certificates
    # An endpoint may not be a loopback address, and the addresses of the agent's pods are.
    controllers = [name for name in CONTROLLERS if not (agent and name == "endpointslice-controller")]
    return [
        f"--service-account-private-key-file={pair.key}",
        f"--root-ca-file={pair.ca}",
        "--use-service-account-credentials=false",
        f"--controllers={','.join(controllers)}",
        f"--node-monitor-grace-period={NODE_GRACE_S}s",
        "--node-monitor-period=2s",
    ]


def _kubernetes(layout: Layout, name: str, flags: list[str]) -> Process:
    program, port = f"kube-{name}", layout.ports[name]
    common = [
        *(f"--{kind}kubeconfig={layout.kubeconfig}" for kind in ("", "authentication-", "authorization-")),
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={layout.root / name}",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
    ]
    command: list[str | Path] = [layout.binaries[program], *common, *flags]
    healthy = _serves(f"https://127.0.0.1:{port}/healthz")
    return _process(program, command, home=layout.root, ready=healthy)


def kwok(*, binary: Path, kubeconfig: Path, stages: Path, port: int) -> Process:
    """The player of nodes and pods, for any cluster that a kubeconfig reaches."""
    flags = [
        f"--kubeconfig={kubeconfig}",
        f"--config={stages}",
        f"--manage-nodes-with-annotation-selector={KWOK_ANNOTATION}=fake",
        "--node-ip=127.0.0.1",
        f"--node-lease-duration-seconds={NODE_LEASE_S}",
        f"--server-address=127.0.0.1:{port}",
    ]
    return _process(
        "kwok", [str(binary), *flags], home=stages.parent, ready=_serves(f"http://127.0.0.1:{port}/healthz")
    )


def node_agent(folder: Path) -> Process:
    """The keeper of the nodes whose pods are processes on this machine."""

    def ready() -> str:
        return "" if (folder / AGENT_READY).exists() else "it is starting"

    command: list[str | Path] = [sys.executable, "-m", "sglpool.sandbox.nodeagent", "--dir", folder]
    return _process(NODE_AGENT, command, home=folder, ready=ready)


def operator_process(folder: Path, *, port: int, speed: float) -> Process:
    """The operator, as a process beside the cluster, whose autoscaler lives as fast as the engines."""
    command: list[str | Path] = [sys.executable, "-m", "sglpool", "operator", "--bind", f"127.0.0.1:{port}"]
    command += ["--clock-speed", str(speed)]
    process = _process("operator", command, home=folder, ready=_serves(f"http://127.0.0.1:{port}/readyz"))
    return replace(process, env={**process.env, "KUBECONFIG": str(folder / "kubeconfig")})


def _process(name: str, command: Sequence[str | Path], *, home: Path, ready: Callable[[], str]) -> Process:
    # A bare environment: no proxy, no kubeconfig and no ~/.kwok of the user may reach these processes.
    return Process(
        name=name,
        argv=[str(part) for part in command],
        # What programs put into their home, such as caches, goes when the sandbox goes.
        env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(home / "run")},
        ready=ready,
        ready_limit_s=READY_LIMIT_S,
    )


def _serves(url: str) -> Callable[[], str]:
    # The certificates of these health endpoints are self-signed at every start.
    tls = ssl.create_default_context()
    tls.check_hostname = False
    tls.verify_mode = ssl.CERT_NONE
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls))

    def ready() -> str:
        try:
            with opener.open(url, timeout=_PROBE_LIMIT_S):
                return ""
        except urllib.error.HTTPError as error:
            error.close()
            return f"{url} answers {error.code}"
        except OSError as error:
            return f"{url} does not answer ({error})"

    return ready
