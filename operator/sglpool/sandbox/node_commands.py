"""`sglpool sandbox nodes` and `sglpool sandbox node ...`: look at nodes, and let them fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer
from rich.table import Table

from sglpool.sandbox import nodes
from sglpool.sandbox.apiserver import ApiServer
from sglpool.sandbox.cluster import Sandbox
from sglpool.sandbox.terminal import DEFAULT_FOLDER, OUT, Folder, told_plainly

node_app = typer.Typer(
    name="node", help="Add, stop, start, delete or cordon a node, such as b200-0.", no_args_is_help=True
)

NodeName = Annotated[str, typer.Argument(help="Type and number, such as b200-0.")]


def list_nodes(folder: Folder = DEFAULT_FOLDER) -> None:
    """Show the nodes and how many of their GPUs are taken."""
    with told_plainly():
        OUT.print(node_table(nodes.node_states(Sandbox(folder).api)))


def node_table(states: list[nodes.NodeState]) -> Table:
    """Nodes as they are shown everywhere."""
    table = Table("NODE", "GPU", "READY", "GPUS TAKEN", "SPEED", box=None)
    for node in states:
        ready = "yes" if node.ready else "[red]no[/red]"
        if node.ready and not node.schedulable:
            ready = "yes, cordoned"
        taken = f"{node.gpus_requested} of {node.gpus}"
        table.add_row(node.name, node.product or "-", ready, taken, f"{node.speed:g}x" if node.speed else "fake")
    return table


def _node_command(name: str, action: Callable[[ApiServer, str], None], help_text: str) -> None:
    @node_app.command(name, help=help_text)
    def command(node: NodeName, folder: Folder = DEFAULT_FOLDER) -> None:
        with told_plainly():
            action(Sandbox(folder).api, node)


@node_app.command("add")
def _add(node: NodeName, folder: Folder = DEFAULT_FOLDER) -> None:
    """Create a node, kept as the others are."""
    with told_plainly():
        sandbox = Sandbox(folder)
        nodes.add_node(sandbox.api, node, speed=sandbox.speed)


def _uncordon(api: ApiServer, node: str) -> None:
    nodes.cordon_node(api, node, unschedulable=False)


_node_command("stop", nodes.stop_node, "Cut a node's power: NotReady after the grace period, its processes gone.")
_node_command("start", nodes.start_node, "Bring a stopped node back; what was bound to it starts again.")
_node_command("delete", nodes.delete_node, "Delete a node, as when a machine leaves the cluster.")
_node_command("cordon", nodes.cordon_node, "Keep new pods off a node.")
_node_command("uncordon", _uncordon, "Let pods on a node again.")
