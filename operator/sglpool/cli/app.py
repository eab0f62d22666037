"""The commands and their options. Bodies are a line or two: what they do lives in the modules beside this one."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sglpool import __version__

SANDBOX = "sandbox"


class PlanFormat(StrEnum):
    """How `plan` answers."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class ShowFormat(StrEnum):
    """How `router show` answers."""

    TABLE = "table"
    JSON = "json"


class LogLevel(StrEnum):
    """Least severity that the operator logs."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How the operator logs."""

    TEXT = "text"
    JSON = "json"


class Commands(TyperGroup):
    """The commands, of which the sandbox is imported only when it is asked for: the operator never needs it."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in the order of the help."""
        return [*(name for name in self.commands if name != SANDBOX), SANDBOX]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name."""
        if cmd_name == SANDBOX and SANDBOX not in self.commands:
            from sglpool.sandbox.commands import app as sandbox

            self.add_command(typer.main.get_command(sandbox), SANDBOX)
        return super().get_command(ctx, cmd_name)


app = typer.Typer(
    name="sglpool",
    cls=Commands,
    help="Pools of SGLang replicas for coding agents, on Kubernetes.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sglpool {__version__}")
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Pools of SGLang replicas for coding agents, on Kubernetes."""


@app.command(
    epilog="Exit code: 0 every pool fits, 1 one does not, 2 an input is invalid. "
    "Example: sglpool plan -f pool.yaml -o yaml",
)
def plan(
    files: Annotated[
        list[str],
        typer.Option("--filename", "-f", metavar="FILE", help="File with InferencePools, - for standard input."),
    ],
    output: Annotated[
        PlanFormat,
        typer.Option(
            "--output",
            "-o",
            help="table: the memory arithmetic for people. json: the figures (docs/plan-json.md). yaml: the manifests.",
        ),
    ] = PlanFormat.TABLE,
    gpu_types: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="YAML with GPU types, as the operator's option of that name."),
    ] = None,
) -> None:
    """Show whether pools fit, how, and what they become; no cluster needed.

    Checks files as the API server would, then sizes a replica on every GPU type of the pool: weights and KV cache on
    a GPU, HiCache and processes in host memory.
    """
    from sglpool.cli.plan import run_plan

    raise typer.Exit(run_plan(files, output, gpu_types))


@app.command(epilog="Runs until SIGTERM or Ctrl-C. Example: sglpool operator --kubeconfig ~/.kube/config --resync 10m")
def operator(
    kubeconfig: Annotated[
        str | None,
        typer.Option(help="Kubeconfig to use; default: the pod's own account, else $KUBECONFIG or ~/.kube/config."),
    ] = None,
    namespaces: Annotated[
        list[str] | None,
        typer.Option("--namespace", "-n", help="Namespace to serve, may be repeated; default: all of them."),
    ] = None,
    bind: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address of /healthz, /readyz and /metrics.")] = (
        "0.0.0.0:8080"
    ),
    workers: Annotated[int, typer.Option(min=1, max=64, help="Pools that are reconciled side by side.")] = 8,
    leader_elect: Annotated[
        bool, typer.Option("--leader-elect", help="Wait for a Lease, so that one of several replicas works.")
    ] = False,
    resync: Annotated[str, typer.Option(metavar="DURATION", help="Time between full listings, such as 5m.")] = "5m",
    log_level: Annotated[LogLevel, typer.Option(help="Least severity to log.")] = LogLevel.INFO,
    log_format: Annotated[LogFormat, typer.Option(help="text for people, json for collectors.")] = LogFormat.TEXT,
    gpu_types: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="YAML with GPU types: node labels of known ones, or whole new ones."),
    ] = None,
    router_image: Annotated[
        str, typer.Option(metavar="IMAGE", help="Image of sglpool in routers whose pool names none.")
    ] = "",
    check: Annotated[
        bool, typer.Option("--check", help="Say whether CRD, rights and running operators are as they should be; end.")
    ] = False,
    clock_speed: Annotated[
        float,
        typer.Option(hidden=True, help="Seconds of the autoscaler in a second of the wall clock, in rehearsals."),
    ] = 1.0,
) -> None:
    """Run the operator: turn InferencePools into engines, and keep them so."""
    from sglpool.cli import operator as command

    arguments = command.OperatorArguments(
        kubeconfig=kubeconfig,
        namespaces=tuple(namespaces) if namespaces else None,
        bind=bind,
        workers=workers,
        leader_elect=leader_elect,
        resync=resync,
        log_level=log_level.upper(),
        log_json=log_format is LogFormat.JSON,
        clock_speed=clock_speed,
        gpu_types=gpu_types,
        router_image=router_image,
    )
    raise typer.Exit(command.check(arguments) if check else command.run(arguments))


@app.command(epilog="Runs until SIGTERM. It is what the operator puts beside Envoy in a router's pod.")
def picker(
    config: Annotated[Path, typer.Option(help="The picker's settings, as the operator renders them.")] = Path(
        "/etc/sglpool/router/picker.json"
    ),
    init: Annotated[bool, typer.Option("--init", help="Write the files that Envoy needs at its start, and end.")] = (
        False
    ),
    supervise: Annotated[
        bool,
        typer.Option("--supervise", help="Start the picker again when it dies or hangs: for PID 1 of a container."),
    ] = False,
    api_server: Annotated[
        str | None, typer.Option(metavar="URL", help="API server without authentication; default: the pod's account.")
    ] = None,
    log_level: Annotated[LogLevel, typer.Option(help="Least severity to log.")] = LogLevel.INFO,
) -> None:
    """Run a router's picker: it tells Envoy where each request goes."""
    from sglpool.cli.picker import run

    raise typer.Exit(run(config, init=init, supervise=supervise, api_server=api_server, log_level=log_level.upper()))


router = typer.Typer(name="router", help="Look at the routers of a pool.", no_args_is_help=True)
app.add_typer(router)


@router.callback()
def routers() -> None:
    """Look at the routers of a pool."""


@router.command(
    epilog="Exit code: 0 every router answered, 1 one did not, 2 there is none to ask. "
    "Example: sglpool router show kimi-coder -n serving",
)
def show(
    pool: Annotated[str, typer.Argument(metavar="POOL", help="Name of the pool.")],
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Its namespace.")] = "default",
    kubeconfig: Annotated[
        str | None,
        typer.Option(help="Kubeconfig to use; default: the pod's own account, else $KUBECONFIG or ~/.kube/config."),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="Ask one router here instead, for example http://localhost:9000 behind a port-forward."),
    ] = None,
    output: Annotated[
        ShowFormat, typer.Option("--output", "-o", help="table: a row a replica. json: each router's state as it is.")
    ] = ShowFormat.TABLE,
) -> None:
    """Show what the routers of a pool know of its replicas: load, KV cache, conversations, draining."""
    from sglpool.cli.router import run_show

    as_json = output is ShowFormat.JSON
    raise typer.Exit(run_show(pool, namespace=namespace, kubeconfig=kubeconfig, url=url, as_json=as_json))


@app.command(epilog="Install it: sglpool crd | kubectl apply --server-side -f -")
def crd(
    chart: Annotated[bool, typer.Option("--chart", help="Print it as a template of the Helm chart.")] = False,
) -> None:
    """Print the CustomResourceDefinition of InferencePool as YAML."""
    from sglpool.cli.crd import chart_text, crd_text

    typer.echo(chart_text() if chart else crd_text(), nl=False)


class Workload(StrEnum):
    """What the clients of a simulation are like."""

    AUTONOMOUS = "autonomous"
    THICK = "thick"
    INTERACTIVE = "interactive"


@app.command(
    epilog="Exit code: 0 done, 2 an argument is invalid. Example: sglpool simulate -p affinity -p session_hash"
)
def simulate(
    policies: Annotated[
        list[str] | None,
        typer.Option("--policy", "-p", help="affinity or a peer such as session_hash, may be repeated; default: all."),
    ] = None,
    workload: Annotated[
        Workload,
        typer.Option(
            "--workload",
            "-w",
            help="autonomous: agents that never pause. thick: 6% of them run 4 to 16 conversations at once. "
            "interactive: users think in between.",
        ),
    ] = Workload.AUTONOMOUS,
    replicas: Annotated[int, typer.Option(min=1, max=1000, help="Engines.")] = 50,
    sessions: Annotated[int, typer.Option(min=0, help="Clients; 0: about five requests running on each engine.")] = 0,
    seconds: Annotated[float, typer.Option(help="Simulated time, the warm-up included.")] = 900.0,
    warmup: Annotated[float, typer.Option(help="Simulated seconds that no figure counts.")] = 300.0,
    seed: Annotated[int, typer.Option(help="Same seed, same figures.")] = 1,
    routers: Annotated[int, typer.Option(min=1, max=64, help="Routers that share a store.")] = 1,
    poll: Annotated[float, typer.Option(help="Seconds between two polls of an engine.")] = 1.0,
    trace: Annotated[str, typer.Option(metavar="FILE", help="Corpus of recorded sessions to replay.")] = "",
) -> None:
    """Try routing policies on simulated engines and coding agents; no cluster needed."""
    from sglpool.cli.simulate import run_simulate

    raise typer.Exit(
        run_simulate(
            policies or (),
            workload,
            replicas=replicas,
            sessions=sessions,
            seconds=seconds,
            warmup_s=warmup,
            seed=seed,
            routers=routers,
            poll_s=poll,
            trace=trace,
        )
    )


def main() -> None:
    """Run the command line."""
    app()
