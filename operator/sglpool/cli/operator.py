"""`sglpool operator`: options to the operator's own types, and failures as one clear line.

Not here: the operator (`controller`).
"""

import asyncio
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from sglpool.api.quantity import parse_duration_s
from sglpool.cli.gpufile import BadGPUTypes, catalog_with
from sglpool.cli.logs import set_up_logging
from sglpool.controller.app import MissingCRD, OperatorOptions, WatchForbidden, own_namespace, run_operator
from sglpool.controller.check import Finding
from sglpool.controller.check import check as check_installation
from sglpool.kube import KubeClient, KubeConfigError, KubeError, LeaseLost

EXPECTED = (MissingCRD, WatchForbidden, KubeConfigError, KubeError, LeaseLost, OSError)
"""Failures whose own words are enough; anything else is a defect and shows its traceback."""

_LOG = logging.getLogger("sglpool")


class BadArgument(Exception):
    """An option that cannot be used as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorArguments:
    """The words of the command line.

    Attributes:
        kubeconfig: Path of a kubeconfig, None for the default.
        namespaces: Namespaces to serve, None for all.
        bind: `HOST:PORT` of the HTTP endpoints.
        workers: Pools reconciled side by side.
        leader_elect: Whether to wait for a Lease.
        resync: Time between full listings, a Go duration.
        log_level: A level of `logging`.
        log_json: Whether lines are JSON.
        clock_speed: How many times faster than life the autoscaler lives.
        gpu_types: Path of a file with GPU types, None for those of the catalogue alone.
        router_image: Image of routers whose pool names none, empty for the one of this version.
    """

    kubeconfig: str | None
    namespaces: tuple[str, ...] | None
    bind: str
    workers: int
    leader_elect: bool
    resync: str
    log_level: str
    log_json: bool
    clock_speed: float = 1.0
    gpu_types: str | None = None
    router_image: str = ""


def check(arguments: OperatorArguments) -> int:
    """Say whether an installation works, a line for each thing that was looked at.

    Returns:
        The exit code: 0 if all is fine, 1 if not, 2 for an unusable option.
    """
    try:
        options = options_of(arguments)
    except BadArgument as error:
        print(f"sglpool operator: {error}", file=sys.stderr)
        return 2
    try:
        findings = asyncio.run(_check(options))
    except Exception as error:
        return _failure(error)
    for finding in findings:
        print(f"{'ok' if finding.fine else 'FAILED':<8}{finding.text}")
    return 0 if all(finding.fine for finding in findings) else 1


async def _check(options: OperatorOptions) -> list[Finding]:
    async with KubeClient.connect(options.kubeconfig) as kube:
        return await check_installation(
            kube,
            namespaces=options.namespaces,
            leader_election=options.leader_election,
            own_namespace=own_namespace(),
            port=options.port,
        )


def run(arguments: OperatorArguments) -> int:
    """Run the operator until it is told to stop.

    Returns:
        The exit code: 0 after a stop, 1 after a failure, 2 for an unusable option.
    """
    try:
        options = options_of(arguments)
    except BadArgument as error:
        print(f"sglpool operator: {error}", file=sys.stderr)
        return 2
    set_up_logging(level=arguments.log_level, as_json=arguments.log_json)
    try:
        asyncio.run(run_operator(options))
    except Exception as error:
        return _failure(error)
    return 0


def options_of(arguments: OperatorArguments) -> OperatorOptions:
    """The operator's options.

    Raises:
        BadArgument: An option cannot be used; the message names it.
    """
    host, port = _parse_bind(arguments.bind)
    try:
        resync_s = parse_duration_s(arguments.resync)
    except ValueError as error:
        raise BadArgument(f"--resync {error}") from None
    if resync_s < 1:
        raise BadArgument(f"--resync {arguments.resync} is no time at all: write for example 5m")
    if not 1 <= arguments.clock_speed <= 1000:
        raise BadArgument(f"--clock-speed {arguments.clock_speed:g} is not from 1 to 1000")
    try:
        catalog = catalog_with(arguments.gpu_types)
    except BadGPUTypes as error:
        raise BadArgument(str(error)) from None
    return OperatorOptions(
        kubeconfig=arguments.kubeconfig,
        namespaces=arguments.namespaces,
        host=host,
        port=port,
        workers=arguments.workers,
        leader_election=arguments.leader_elect,
        resync_period_s=resync_s,
        clock_speed=arguments.clock_speed,
        catalog=catalog,
        router_image=arguments.router_image,
    )


def _parse_bind(bind: str) -> tuple[str, int]:
    host, _, port = bind.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise BadArgument(f"--bind {bind!r} is not HOST:PORT: write for example 0.0.0.0:8080 or [::]:8080")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _failure(error: Exception) -> int:
    """Say why the operator ended; tasks fail in groups, of which every member counts."""
    causes = list(_leaves(error))
    unexpected = [cause for cause in causes if not isinstance(cause, EXPECTED)]
    for cause in unexpected:
        _LOG.error("the operator failed: %s", cause, exc_info=cause)
    if not unexpected:
        for text in dict.fromkeys(str(cause) for cause in causes):
            print(f"sglpool operator: {text}", file=sys.stderr)
    return 1


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
