"""`sglpool operator`: set up logging, run the process, and end with one clear line when it cannot run."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from datetime import UTC, datetime

import typer

from sglpool.controller.app import MissingCRD, OperatorOptions, run_operator
from sglpool.kube import KubeConfigError, KubeError, LeaseLost

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def run(
    *,
    kubeconfig: str | None,
    namespaces: tuple[str, ...],
    bind: str,
    workers: int,
    resync_s: int,
    leader_election: bool,
    log_level: str,
    log_format: str,
) -> int:
    """Run the operator until it is stopped; the exit code."""
    if log_level not in _LEVELS:
        raise typer.BadParameter(f"{log_level!r} is none of {', '.join(_LEVELS)}", param_hint="--log-level")
    if log_format not in {"text", "json"}:
        raise typer.BadParameter(f"{log_format!r} is neither text nor json", param_hint="--log-format")
    host, _, port = bind.rpartition(":")
    if not port.isdecimal():
        raise typer.BadParameter(f"{bind!r} is not ADDRESS:PORT, for example 0.0.0.0:8080", param_hint="--bind")
    _set_up_logging(_LEVELS[log_level], as_json=log_format == "json")
    options = OperatorOptions(
        kubeconfig=kubeconfig,
        namespaces=namespaces or None,
        host=host or "0.0.0.0",
        port=int(port),
        workers=workers,
        leader_election=leader_election,
        resync_period_s=float(resync_s),
    )
    return _run(options)


def _run(options: OperatorOptions) -> int:
    """Run; expected failures are one line on standard error, unexpected ones keep their traceback."""
    failures: list[BaseException] = []
    try:
        asyncio.run(run_operator(options))
    except* (MissingCRD, KubeConfigError, KubeError, LeaseLost) as group:
        failures += _leaves(group)
    for failure in failures:
        typer.echo(f"error: {failure}", err=True)
    return 1 if failures else 0


def _leaves(group: BaseException) -> list[BaseException]:
    if isinstance(group, BaseExceptionGroup):
        return [leaf for inner in group.exceptions for leaf in _leaves(inner)]
    return [group]


def _set_up_logging(level: int, *, as_json: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s")
    handler.setFormatter(_JsonFormatter() if as_json else text)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # kopf tells of every event; what we do about it is one line of ours.
    for noisy in ("kopf", "asyncio", "aiohttp"):
        logging.getLogger(noisy).setLevel(max(level, logging.WARNING))


class _JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)
