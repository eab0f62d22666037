"""`sglpool sandbox`: the command line of the sandbox, thin over `cluster`."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sglpool.sandbox import binaries, nodes
from sglpool.sandbox.cluster import Sandbox
from sglpool.sandbox.demo import Demo
from sglpool.sandbox.errors import SandboxError
from sglpool.sandbox.node_commands import list_nodes, node_app, node_table
from sglpool.sandbox.pod_commands import chat, endpoint, fault, logs
from sglpool.sandbox.terminal import DEFAULT_FOLDER, OUT, Folder, say, told_plainly
from sglpool.sandbox.versions import EVERYTHING

app = typer.Typer(
    name="sandbox",
    help="A real Kubernetes control plane on this machine, with GPU nodes whose engines are simulated.",
    no_args_is_help=True,
)
app.command("nodes")(list_nodes)
app.add_typer(node_app)
for command in (logs, endpoint, chat, fault):
    app.command()(command)

DEFAULT_SAMPLE = Path("manifests/samples/kimi-k2.6-coder.yaml")
DEFAULT_REPORT = Path(".sandbox/demo-report.html")
DEFAULT_SPEED = 20.0


@app.command()
def up(
    node_counts: Annotated[
        str, typer.Option("--nodes", help="Nodes by type: B200, B300, H200, CPU.")
    ] = "B200=4,B300=2",
    folder: Folder = DEFAULT_FOLDER,
    speed: Annotated[
        float, typer.Option(min=0.1, max=1000, help="Engines load, prefill and decode so many times faster than life.")
    ] = DEFAULT_SPEED,
    fake: Annotated[bool, typer.Option("--fake", help="Fake pods that run nothing: for thousands of them.")] = False,
    operator: Annotated[bool, typer.Option(help="Install the CRD and run the operator as well.")] = True,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay, and end the sandbox on Ctrl-C.")] = False,
) -> None:
    """Start a control plane and wait until it is Ready; it runs until `sandbox down`."""
    started = time.monotonic()
    with told_plainly():
        sandbox = Sandbox(folder)
        sandbox.up(nodes.parse_nodes(node_counts), speed=None if fake else speed, operator=operator, say=say)
        _summary(sandbox, seconds=time.monotonic() - started)
        if foreground:
            say("running; Ctrl-C ends it")
            try:
                signal.pause()
            finally:
                sandbox.down()


@app.command()
def status(folder: Folder = DEFAULT_FOLDER) -> None:
    """Show processes, versions and nodes; exit 1 unless everything runs."""
    with told_plainly():
        found = Sandbox(folder).status()
    table = Table("PROCESS", "PID", "VERSION", box=None)
    for name, pid in found.processes.items():
        table.add_row(name, str(pid) if pid else "[red]ended[/red]", found.versions.get(name, ""))
    OUT.print(table)
    OUT.print(node_table(found.nodes))
    raise typer.Exit(0 if found.running else 1)


@app.command()
def restart(
    names: Annotated[
        list[str] | None, typer.Argument(help="Such as node-agent; without names, whatever has ended.")
    ] = None,
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Start processes again that have ended, also after this machine was restarted."""
    with told_plainly(on_interrupt="interrupted; look with `sglpool sandbox status`"):
        sandbox = Sandbox(folder)
        sandbox.restart(names or (), say=say)
        say("every process runs" if sandbox.status().running else "some processes do not run")


@app.command()
def down(folder: Folder = DEFAULT_FOLDER) -> None:
    """End every process and remove the sandbox's files."""
    with told_plainly():
        Sandbox(folder).down()
    say(f"no sandbox is left in {folder}")


@app.command()
def env(folder: Folder = DEFAULT_FOLDER) -> None:
    """Print the lines that point a shell at the sandbox: eval "$(sglpool sandbox env)"."""
    with told_plainly():
        sandbox = Sandbox(folder)
        print(f"export KUBECONFIG={shlex.quote(str(sandbox.kubeconfig))}")
        print(f'export PATH={shlex.quote(str(sandbox.kubectl.parent))}:"$PATH"')


@app.command()
def fetch() -> None:
    """Download or build the control-plane binaries and helm, without starting anything."""
    with told_plainly():
        for name, path in binaries.ensure(EVERYTHING, say=say).items():
            OUT.print(f"{name} {binaries.version_of(name, path)} {path}", soft_wrap=True)


@app.command()
def demo(
    sample: Annotated[Path, typer.Option("--sample", help="The pool to show.")] = DEFAULT_SAMPLE,
    folder: Folder = Path(".sandbox-demo"),
    report: Annotated[Path, typer.Option("--report", help="Where the report goes, one HTML page.")] = DEFAULT_REPORT,
) -> None:
    """Tell a pool's life on a real control plane, under load; nothing stays running, and a report tells it again."""
    with told_plainly():
        if not sample.exists():
            raise SandboxError(f"there is no {sample}; run this in the project's folder, or name a pool with --sample")
        Demo(folder, sample, report, Console()).run()


def _summary(sandbox: Sandbox, *, seconds: float) -> None:
    found = sandbox.status()
    OUT.print(f"[bold]The sandbox is Ready[/bold] after {seconds:.0f} s: {found.server}")
    OUT.print("  " + ", ".join(f"{name} {version}" for name, version in found.versions.items()), soft_wrap=True)
    OUT.print(node_table(found.nodes))
    own = "" if sandbox.folder == DEFAULT_FOLDER.absolute() else f" --dir {shlex.quote(str(sandbox.folder))}"
    OUT.print(f"Use it:  export KUBECONFIG={shlex.quote(str(sandbox.kubeconfig))}", soft_wrap=True)
    OUT.print(f'   or :  eval "$(sglpool sandbox env{own})"', soft_wrap=True)
    OUT.print(f"End it:  sglpool sandbox down{own}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(app())
