"""Logging of the long-running commands: to standard error, for people or as one JSON object a line.

What is about a pool begins with `pool=NAMESPACE/NAME `; in JSON that is a field of its own, to search for. Not here:
what is logged.
"""

import json
import logging
import time

_POOL = "pool="


def set_up_logging(*, level: str, as_json: bool, pool: str = "") -> None:
    """Log to standard error; kopf's own running commentary only from warnings on.

    Args:
        level: Least severity.
        as_json: Whether lines are JSON.
        pool: `NAMESPACE/NAME` of the pool that everything is about, where it is about one alone.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter(pool) if as_json else _TextFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in ("kopf", "aiohttp", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # What it warns of is said better by the error that follows.
    logging.getLogger("kubernetes").setLevel(logging.ERROR)


def _stamp(created_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created_s)) + f".{int(created_s * 1000) % 1000:03d}Z"


class _TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z INFO  sglpool.controller.reconcile: words`."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"{_stamp(record.created)} {record.levelname:<7} {record.name}: {record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class _JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, pool, message, and exception where there is one."""

    def __init__(self, pool: str) -> None:
        super().__init__()
        self._pool = pool

    def format(self, record: logging.LogRecord) -> str:
        pool, message = _split(record.getMessage())
        entry = {"time": _stamp(record.created), "level": record.levelname.lower(), "logger": record.name}
        if pool or self._pool:
            entry["pool"] = pool or self._pool
        entry["message"] = message
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def _split(message: str) -> tuple[str, str]:
    """The pool that a message begins with, empty without one, and the rest."""
    if not message.startswith(_POOL):
        return "", message
    pool, _, rest = message.removeprefix(_POOL).partition(" ")
    return pool, rest
