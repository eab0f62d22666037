"""`sglpool sandbox`: the command line of the sandbox, thin over `cluster` and `nodes`."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sglpool.sandbox import binaries, nodes
from sglpool.sandbox.apiserver import ApiServer
from sglpool.sandbox.cluster import Sandbox
from sglpool.sandbox.demo import Demo
from sglpool.sandbox.errors import SandboxError
from sglpool.sandbox.versions import EVERYTHING

app = typer.Typer(
    name="sandbox",
    help="A real Kubernetes control plane on this machine with fake GPU nodes; no container engine needed.",
    no_args_is_help=True,
)
nodes_app = typer.Typer(name="nodes", help="Show, add, remove, cordon or lose fake nodes.")
app.add_typer(nodes_app, invoke_without_command=True)

_out = Console()
_progress = Console(stderr=True, highlight=False)

Folder = Annotated[
    Path, typer.Option("--dir", help="Folder of the sandbox: kubeconfig, logs and data.", envvar="SGLPOOL_SANDBOX")
]
NodeName = Annotated[str, typer.Argument(help="Type and number, such as b200-0.")]
DEFAULT_FOLDER = Path(".sandbox")
DEFAULT_SAMPLE = Path("manifests/samples/kimi-k2.6-coder.yaml")


@app.command()
def up(
    node_counts: Annotated[
        str, typer.Option("--nodes", help="Fake nodes by type: B200, B300, H200, CPU.")
    ] = "B200=4,B300=2",
    folder: Folder = DEFAULT_FOLDER,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay, and end the sandbox on Ctrl-C.")] = False,
) -> None:
    """Start a control plane and wait until it is Ready; it runs until `sandbox down`."""
    started = time.monotonic()
    with _told_plainly():
        sandbox = Sandbox(folder)
        sandbox.up(nodes.parse_nodes(node_counts), say=_say)
        _summary(sandbox, seconds=time.monotonic() - started)
        if foreground:
            _say("running; Ctrl-C ends it")
            try:
                signal.pause()
            finally:
                sandbox.down()


@app.command()
def status(folder: Folder = DEFAULT_FOLDER) -> None:
    """Show processes, versions and nodes; exit 1 unless everything runs."""
    with _told_plainly():
        found = Sandbox(folder).status()
    table = Table("PROCESS", "PID", "VERSION", box=None)
    for name, pid in found.processes.items():
        table.add_row(name, str(pid) if pid else "[red]ended[/red]", found.versions.get(name, ""))
    _out.print(table)
    _out.print(_node_table(found.nodes))
    raise typer.Exit(0 if found.running else 1)


@app.command()
def down(folder: Folder = DEFAULT_FOLDER) -> None:
    """End every process and remove the sandbox's files."""
    with _told_plainly():
        Sandbox(folder).down()
    _say(f"no sandbox is left in {folder}")


@app.command()
def env(folder: Folder = DEFAULT_FOLDER) -> None:
    """Print the lines that point a shell at the sandbox: eval "$(sglpool sandbox env)"."""
    with _told_plainly():
        sandbox = Sandbox(folder)
        print(f"export KUBECONFIG={shlex.quote(str(sandbox.kubeconfig))}")
        print(f'export PATH={shlex.quote(str(sandbox.kubectl.parent))}:"$PATH"')


@app.command()
def fetch() -> None:
    """Download or build the control-plane binaries and helm, without starting anything."""
    with _told_plainly():
        for name, path in binaries.ensure(EVERYTHING, say=_say).items():
            _out.print(f"{name} {binaries.version_of(name, path)} {path}", soft_wrap=True)


@app.command()
def demo(
    sample: Annotated[Path, typer.Option("--sample", help="The pool to show.")] = DEFAULT_SAMPLE,
    folder: Folder = Path(".sandbox-demo"),
) -> None:
    """Tell a pool's life on a real control plane: create, scale, bad changes, delete. Nothing stays running."""
    with _told_plainly():
        if not sample.exists():
            raise SandboxError(f"there is no {sample}; run this in the project's folder, or name a pool with --sample")
        Demo(folder, sample, Console()).run()


@nodes_app.callback()
def list_nodes(context: typer.Context, folder: Folder = DEFAULT_FOLDER) -> None:
    """Show the nodes and how many of their GPUs are taken."""
    context.obj = folder
    if context.invoked_subcommand is None:
        with _told_plainly():
            _out.print(_node_table(nodes.node_states(Sandbox(folder).api)))


def _node_command(name: str, action: Callable[[ApiServer, str], None], help_text: str) -> None:
    @nodes_app.command(name, help=help_text)
    def command(context: typer.Context, node: NodeName) -> None:
        with _told_plainly():
            action(Sandbox(context.obj).api, node)


def _uncordon(api: ApiServer, node: str) -> None:
    nodes.cordon_node(api, node, unschedulable=False)


_node_command("add", nodes.add_node, "Create a fake node.")
_node_command("remove", nodes.remove_node, "Delete a node, as when a machine leaves the cluster.")
_node_command("cordon", nodes.cordon_node, "Keep new pods off a node.")
_node_command("uncordon", _uncordon, "Let pods on a node again.")
_node_command("lose", nodes.lose_node, "Let a node's kubelet die: NotReady after the grace period.")
_node_command("restore", nodes.restore_node, "Bring a lost node back.")


def _say(line: str) -> None:
    _progress.print(line, soft_wrap=True, markup=False)


@contextlib.contextmanager
def _told_plainly() -> Iterator[None]:
    """Errors as one red line, interrupts of any kind as a clean end."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        yield
    except SandboxError as error:
        _progress.print(f"[red]error:[/red] {error}", soft_wrap=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        _say("interrupted; nothing is left running")
        raise typer.Exit(130) from None


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _summary(sandbox: Sandbox, *, seconds: float) -> None:
    found = sandbox.status()
    _out.print(f"[bold]The sandbox is Ready[/bold] after {seconds:.0f} s: {found.server}")
    _out.print("  " + ", ".join(f"{name} {version}" for name, version in found.versions.items()), soft_wrap=True)
    _out.print(_node_table(found.nodes))
    own = "" if sandbox.folder == DEFAULT_FOLDER.absolute() else f" --dir {shlex.quote(str(sandbox.folder))}"
    _out.print(f"Use it:  export KUBECONFIG={shlex.quote(str(sandbox.kubeconfig))}", soft_wrap=True)
    _out.print(f'   or :  eval "$(sglpool sandbox env{own})"', soft_wrap=True)
    _out.print(f"End it:  sglpool sandbox down{own}", soft_wrap=True)


def _node_table(states: list[nodes.NodeState]) -> Table:
    table = Table("NODE", "GPU", "READY", "GPUS TAKEN", box=None)
    for node in states:
        ready = "yes" if node.ready else "[red]no[/red]"
        if node.ready and not node.schedulable:
            ready = "yes, cordoned"
        table.add_row(node.name, node.product or "-", ready, f"{node.gpus_requested} of {node.gpus}")
    return table


if __name__ == "__main__":
    sys.exit(app())
