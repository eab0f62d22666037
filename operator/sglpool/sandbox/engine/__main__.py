"""`python -m sglpool.sandbox.engine [--machine DIR] [--prog NAME] -- ARGUMENTS OF SGLANG`.

Loads, then serves; the exit codes are SGLang's. The image's `sglang` calls this.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from sglpool.sandbox.engine.argv import SERVE_PROG
from sglpool.sandbox.engine.machine import DEFAULT_FOLDER, MachineError, die_by_kill, load_machine
from sglpool.sandbox.engine.startup import Died, start

_USAGE = "usage: python -m sglpool.sandbox.engine [--machine DIR] [--prog NAME] -- --model-path PATH ..."


def main(words: Sequence[str]) -> int:
    """Run one engine; returns its exit code."""
    own, engine_words = _split(list(words))
    if own is None:
        print(_USAGE, file=sys.stderr)
        return 2
    try:
        machine = load_machine(Path(own.get("--machine", str(DEFAULT_FOLDER))))
    except MachineError as error:
        print(f"sglpool: {error}", file=sys.stderr)
        return 1
    try:
        spec = start(engine_words, machine, prog=own.get("--prog", SERVE_PROG))
    except Died:
        die_by_kill()
    # Imported once the load is done: a refused command line needs neither the server nor its loop.
    import uvloop

    from sglpool.sandbox.engine.server import serve

    return uvloop.run(serve(spec))


def _split(words: list[str]) -> tuple[dict[str, str] | None, list[str]]:
    """Own options and the engine's; None for the first when they make no sense."""
    own: dict[str, str] = {}
    while words and words[0] in ("--machine", "--prog"):
        if len(words) < 2:
            return None, []
        own[words[0]] = words[1]
        words = words[2:]
    if not words or words[0] != "--":
        return None, []
    return own, words[1:]


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
