"""`sglpool picker`: the process beside Envoy in a router's pod, and its init step.

Not here: the picker (`picker`).
"""

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from sglpool.picker.initial import write_initial
from sglpool.picker.watch import Account, WatchError
from sglpool.routing.pickerconfig import PickerConfigError, parse_picker_config


def run(config: Path, *, init: bool, api_server: str | None, log_level: str) -> int:
    """Run the picker, or write Envoy's first files.

    Args:
        config: picker.json.
        init: Write the files and end.
        api_server: URL of an API server without authentication, instead of the pod's own account.
        log_level: Least severity to log.

    Returns:
        The exit code.
    """
    logging.basicConfig(level=log_level, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
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
            account=_account(os.environ, api_server),
            pod_name=os.environ.get("POD_NAME", "router"),
            pod_uid=os.environ.get("POD_UID", ""),
        )
        run_picker(options)
    except (PickerConfigError, WatchError, OSError) as problem:
        print(f"sglpool picker: {problem}", file=sys.stderr)
        return 1
    return 0


def _account(environment: Mapping[str, str], api_server: str | None) -> Account:
    return Account(address=api_server.rstrip("/")) if api_server else Account.of_pod(environment)
