"""Loopback addresses of nodes and pods: 127.<slot>.<node>.<pod>, so that ports never clash.

A slot belongs to one node agent: it is held by a listening socket on an address that no node has. So several sandboxes
share a machine without knowing of each other.
"""

from __future__ import annotations

import errno
import random
import socket

from sglpool.sandbox.errors import SandboxError

KUBELET_PORT = 10250
# Slot 0 is 127.0.0.0/16, where everything else on the machine lives.
_SLOTS = range(1, 255)
_NODES = range(0, 255)
_PODS = range(2, 255)


class AddressesUsedUp(SandboxError):
    """No address is left in a node's range."""


class Addresses:
    """The addresses of one agent."""

    def __init__(self) -> None:
        """Take a slot.

        Raises:
            SandboxError: Every slot is taken, or loopback addresses cannot be bound.
        """
        self._holder, self._slot = _take_slot()
        self._nodes: dict[str, int] = {}
        self._pods: dict[str, str] = {}

    def close(self) -> None:
        """Give the slot back."""
        self._holder.close()

    def of_node(self, node: str) -> str:
        """A node's address; the same for as long as the agent runs.

        Raises:
            AddressesUsedUp: There are 255 nodes already.
        """
        if node not in self._nodes:
            free = next((index for index in _NODES if index not in self._nodes.values()), None)
            if free is None:
                raise AddressesUsedUp(f"node {node}: the agent has addresses for {len(_NODES)} nodes only")
            self._nodes[node] = free
        return f"127.{self._slot}.{self._nodes[node]}.1"

    def take(self, node: str, uid: str) -> str:
        """An address for a pod until `release`; the most distant reuse, as addresses linger in clients.

        Raises:
            AddressesUsedUp: The node runs 253 pods already.
        """
        prefix = self.of_node(node).rpartition(".")[0]
        used = set(self._pods.values())
        free = [address for number in _PODS if (address := f"{prefix}.{number}") not in used]
        if not free:
            raise AddressesUsedUp(f"node {node}: all {len(_PODS)} pod addresses are taken")
        self._pods[uid] = random.choice(free)
        return self._pods[uid]

    def release(self, uid: str) -> None:
        """Give a pod's address back."""
        self._pods.pop(uid, None)

    def forget_node(self, node: str) -> None:
        """Give a node's range back."""
        self._nodes.pop(node, None)


def _take_slot() -> tuple[socket.socket, int]:
    reason: OSError | None = None
    for slot in random.sample(_SLOTS, len(_SLOTS)):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            # No SO_REUSEADDR: it must fail while another agent holds the slot.
            listener.bind((f"127.{slot}.255.255", KUBELET_PORT))
            listener.listen(1)
        except OSError as error:
            listener.close()
            reason = error
            if error.errno != errno.EADDRINUSE:
                break
        else:
            return listener, slot
    raise SandboxError(f"no loopback addresses for pods: 127.x.255.255:{KUBELET_PORT} cannot be listened on ({reason})")
