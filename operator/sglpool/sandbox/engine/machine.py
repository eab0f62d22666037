"""The machine that a simulated engine believes to run on: its GPUs, its speed and its present faults.

The node agent binds a folder into every container: `machine.json` says what the machine is, `faults.json` what is
wrong with it right now. Not here: what a fault does; that is up to who asks for it.
"""

from __future__ import annotations

import json
import math
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

DEFAULT_FOLDER = Path("/run/sandbox")


class MachineError(Exception):
    """The machine's description cannot be used; the text is the sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What is wrong with a machine right now; the defaults are a healthy one.

    Attributes:
        hang: requests are accepted and never answered.
        stall: the GPU computes nothing: what runs keeps its place and gets no token.
        accept_length: tokens per decode step with speculation, or None for the usual.
        prefill_slowdown: how many times longer a prefill takes.
        gpu_lost: a GPU has fallen off the bus.
        crash: "oom" or another word ends the engine; empty for none.
    """

    hang: bool = False
    stall: bool = False
    accept_length: float | None = None
    prefill_slowdown: float = 1.0
    gpu_lost: bool = False
    crash: str = ""

    @property
    def deadly(self) -> bool:
        """Whether an engine ends by them."""
        return self.gpu_lost or bool(self.crash)


NO_FAULTS = Faults()


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One container's share of a node.

    Attributes:
        folder: where it was read, and where `faults.json` appears.
        node: the node's name.
        accelerator: the GPUs' name for people, as /v1/loads shows it.
        gpu_type: the catalogue's name of the GPU type, such as "B200".
        gpus: how many GPUs the container has.
        gpu_memory_mib: memory of one GPU, as nvidia-smi reports it.
        speed: model seconds that pass in one second.
        pod: namespace/name of the pod, or empty.
        memory_bytes: memory that the container may take (its limit, else the node's), or None when not told.
        start_speed: the speed until the engine serves, None for the same.
    """

    folder: Path
    node: str
    accelerator: str
    gpu_type: str
    gpus: int
    gpu_memory_mib: int
    speed: float
    pod: str = ""
    memory_bytes: int | None = None
    start_speed: float | None = None

    def faults(self) -> Faults:
        """Read the present faults; a missing file is a healthy machine, a half-written one too."""
        try:
            content = json.loads((self.folder / "faults.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return NO_FAULTS
        return _parse_faults(content) if isinstance(content, dict) else NO_FAULTS


class FaultsFile:
    """Re-reads the faults of a machine only when their file has changed, so that polling costs one `stat`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._path = machine.folder / "faults.json"
        self._seen: tuple[int, int, int] | None = None
        self._faults = NO_FAULTS

    def read(self) -> Faults:
        """The present faults."""
        try:
            entry = self._path.stat()
            seen = (entry.st_mtime_ns, entry.st_ino, entry.st_size)
        except OSError:
            self._seen, self._faults = None, NO_FAULTS
            return NO_FAULTS
        if seen != self._seen:
            self._seen, self._faults = seen, self._machine.faults()
        return self._faults


def load_machine(folder: Path = DEFAULT_FOLDER) -> Machine:
    """Read `machine.json` of a folder.

    Raises:
        MachineError: it is missing, or a field is missing or wrong.
    """
    path = folder / "machine.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MachineError(
            f"{path} cannot be read ({error.strerror}): the simulated engine runs in containers of the sandbox, or "
            "with --machine and a folder that holds machine.json."
        ) from error
    except ValueError as error:
        raise MachineError(f"{path} is not JSON: {error}.") from error
    if not isinstance(content, dict):
        raise MachineError(f"{path} must hold a JSON object.")
    return _parse_machine(folder, path, content)


def _parse_machine(folder: Path, path: Path, content: dict[str, Any]) -> Machine:
    try:
        memory = content.get("memory_bytes")
        start_speed = content.get("start_speed")
        machine = Machine(
            folder=folder,
            node=str(content.get("node", "")),
            accelerator=str(content["accelerator"]),
            gpu_type=str(content["gpu_type"]),
            gpus=int(content["gpus"]),
            gpu_memory_mib=int(content["gpu_memory_mib"]),
            speed=float(content.get("speed", 1.0)),
            pod=str(content.get("pod", "")),
            memory_bytes=None if memory is None else int(memory),
            start_speed=None if start_speed is None else float(start_speed),
        )
    except KeyError as error:
        raise MachineError(f"{path} has no field {error}.") from error
    except (TypeError, ValueError) as error:
        raise MachineError(f"{path} has a field of the wrong kind: {error}.") from error
    for name, value in (("speed", machine.speed), ("start_speed", machine.start_speed)):
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise MachineError(f"{path}: {name} must be a number above 0, not {value}.")
    return machine


def _parse_faults(content: dict[str, Any]) -> Faults:
    return Faults(
        hang=content.get("hang") is True,
        stall=content.get("stall") is True,
        accept_length=_positive(content.get("accept_length")),
        prefill_slowdown=_positive(content.get("prefill_slowdown")) or 1.0,
        gpu_lost=content.get("gpu_lost") is True,
        crash=str(content.get("crash") or ""),
    )


def _positive(value: object) -> float | None:
    """A number above 0; None for anything else, as a fault that makes no sense is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0 or not math.isfinite(value):
        return None
    return float(value)


def die_by_kill() -> NoReturn:
    """End as SGLang's main process does when a rank has died: by SIGKILL.

    The kernel spares PID 1 of a container its own SIGKILL; there the exit code is the one that it would have had.
    """
    os.kill(os.getpid(), signal.SIGKILL)
    os._exit(128 + signal.SIGKILL)
