"""`sglpool picker`: the process beside Envoy in a router's pod, and its init step.

Not here: the picker (`picker`).
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from sglpool.cli.logs import set_up_logging


def run(config: Path, *, init: bool, supervise: bool, api_server: str | None, log_level: str) -> int:
    """Run the picker, or write Envoy's first files.

    Args:
        config: picker.json.
        init: Write the files and end.
        supervise: Run it as a child process, and start it again when it dies or hangs.
        api_server: URL of an API server without authentication, instead of the pod's own account.
        log_level: Least severity to log.

    Returns:
        The exit code.
    """
    # In a pod nobody reads along: lines are for whatever collects them.
    set_up_logging(level=log_level, as_json=not sys.stderr.isatty(), pool=_pool_of(config))

    def work(beat: Callable[[], None], restarts: int) -> int:
        return _run(config, init=init, api_server=api_server, beat=beat, restarts=restarts)

    if not supervise or init:
        return work(lambda: None, 0)
    from sglpool.picker.supervisor import Supervisor

    return Supervisor(work).run()


def _pool_of(config: Path) -> str:
    """`NAMESPACE/NAME` for the log; empty where the settings cannot be read, which is told later."""
    try:
        settings = json.loads(config.read_text(encoding="utf-8"))
        return f"{settings['namespace']}/{settings['pool']}"
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def _run(config: Path, *, init: bool, api_server: str | None, beat: Callable[[], None], restarts: int) -> int:
    # Imported late: the supervisor needs none of it.
    from sglpool.picker.initial import write_initial
    from sglpool.picker.watch import Account, WatchError
    from sglpool.routing.pickerconfig import PickerConfigError, parse_picker_config

    try:
        settings = parse_picker_config(config.read_text(encoding="utf-8"))
        if init:
            write_initial(settings)
            return 0
        # Imported late: the init step needs none of it.
        from sglpool.picker.app import PickerOptions, run_picker

        options = PickerOptions(
            config=settings,
            config_path=config,
            account=Account(address=api_server.rstrip("/")) if api_server else Account.of_pod(os.environ),
            pod_name=os.environ.get("POD_NAME", "router"),
            pod_uid=os.environ.get("POD_UID", ""),
            beat=beat,
            restarts=restarts,
        )
        run_picker(options)
    except (PickerConfigError, WatchError, OSError) as problem:
        print(f"sglpool picker: {problem}", file=sys.stderr)
        return 1
    return 0
