"""`python -m sglpool.sandbox.nodeagent --dir FOLDER`: the node agent of the sandbox in that folder, until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import shutil
import signal
import sys
from pathlib import Path

import uvloop

from sglpool.sandbox.apiserver import ApiServer
from sglpool.sandbox.controlplane import AGENT_READY
from sglpool.sandbox.errors import SandboxError
from sglpool.sandbox.nodeagent.addresses import Addresses
from sglpool.sandbox.nodeagent.agent import Agent
from sglpool.sandbox.nodeagent.api import AgentApi
from sglpool.sandbox.nodeagent.logserver import LogServer

_NEEDED = {"bwrap": "bubblewrap", "nsenter": "util-linux"}


def main() -> int:
    """Run the agent; returns the exit code."""
    parser = argparse.ArgumentParser(description="The node agent of a sandbox.")
    parser.add_argument("--dir", type=Path, required=True, help="folder of the sandbox")
    folder: Path = parser.parse_args().dir.absolute()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        for program, package in _NEEDED.items():
            if not shutil.which(program):
                raise SandboxError(f"{program} is missing: install the package {package}")
        uvloop.run(_serve(folder))
    except SandboxError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: the node agent cannot use {error.filename or folder}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


async def _serve(folder: Path) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    ready = folder / AGENT_READY
    ready.parent.mkdir(parents=True, exist_ok=True)
    addresses = Addresses()
    try:
        async with (
            LogServer(folder, folder / "pki/admin.crt", folder / "pki/admin.key") as logs,
            AgentApi(ApiServer(folder / "kubeconfig")) as api,
        ):
            agent = asyncio.create_task(Agent(api, folder, addresses, logs).run())
            ready.touch()
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({agent, stopping}, return_when=asyncio.FIRST_COMPLETED)
            agent.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await agent
    finally:
        ready.unlink(missing_ok=True)
        addresses.close()


if __name__ == "__main__":
    sys.exit(main())
