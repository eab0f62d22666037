"""The `sglpool` command and its sub-commands: words and help texts. The work is done in the modules beside it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sglpool import __version__

app = typer.Typer(
    name="sglpool",
    help="Pools of SGLang replicas for coding agents on Kubernetes.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line."""
    _mount_sandbox()
    app()


def _mount_sandbox() -> None:
    """Add `sglpool sandbox` unless the operator is what is asked for: a pod has no use for it."""
    if sys.argv[1:2] not in (["operator"], ["plan"], ["crd"]):
        from sglpool.sandbox.commands import app as sandbox

        app.add_typer(sandbox, name="sandbox")


def _version(show: bool) -> None:
    if show:
        typer.echo(f"sglpool {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and end.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Pools of SGLang replicas for coding agents on Kubernetes."""


@app.command()
def plan(
    files: Annotated[
        list[str], typer.Option("--filename", "-f", help="File with InferencePools; - for standard input. Repeatable.")
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="table, json or yaml (the manifests).")] = "table",
) -> None:
    """Check pools without a cluster: would the API server take them, do they fit, and what would run?

    Exit code 0: every pool fits. 1: a pool does not fit. 2: a file or a pool is invalid.
    """
    from sglpool.cli.plan import Output, run_plan

    try:
        kind = Output(output)
    except ValueError:
        raise typer.BadParameter(f"{output!r} is none of table, json, yaml", param_hint="--output") from None
    raise typer.Exit(run_plan(files, kind))


@app.command()
def crd(
    chart: Annotated[bool, typer.Option("--chart", help="Print it as a template of the Helm chart.")] = False,
) -> None:
    """Print the CustomResourceDefinition: `sglpool crd | kubectl apply --server-side -f -`."""
    from sglpool.cli.crd import chart_text, crd_text

    typer.echo(chart_text() if chart else crd_text(), nl=False)


@app.command()
def operator(
    kubeconfig: Annotated[
        str | None, typer.Option(help="Kubeconfig; default: the pod's own account, else $KUBECONFIG.")
    ] = None,
    namespace: Annotated[
        list[str] | None, typer.Option(help="Namespace to serve, repeatable; all when absent.")
    ] = None,
    bind: Annotated[
        str, typer.Option(help="Address and port of /healthz, /readyz and /metrics; port 0 takes a free one.")
    ] = "0.0.0.0:8080",
    workers: Annotated[int, typer.Option(min=1, max=64, help="Pools reconciled side by side.")] = 8,
    resync: Annotated[int, typer.Option(min=10, help="Seconds between full listings.")] = 300,
    leader_elect: Annotated[
        bool, typer.Option("--leader-elect", help="Wait for a Lease first, for more than one operator replica.")
    ] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    log_format: Annotated[str, typer.Option(help="text or json.")] = "text",
) -> None:
    """Run the operator: watch pools and keep their children, sizes and status right."""
    from sglpool.cli.operator import run

    raise typer.Exit(
        run(
            kubeconfig=kubeconfig,
            namespaces=tuple(namespace or ()),
            bind=bind,
            workers=workers,
            resync_s=resync,
            leader_election=leader_elect,
            log_level=log_level,
            log_format=log_format,
        )
    )
