"""`nvidia-smi` of the sandbox's SGLang image: the table, `-L` and `--query-gpu`, from the container's machine folder.

GPUs without a power draw of their own: memory in use and utilisation are what an engine with weights would show when
one runs in this container, else nothing. A lost GPU is an error, as in life.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from sglpool.sandbox.engine.machine import DEFAULT_FOLDER, Machine, MachineError, load_machine

DRIVER = "580.159.04"
CUDA = "13.0"
_USED_SHARE = 0.92


def main(arguments: Sequence[str], *, folder: Path = DEFAULT_FOLDER, proc: Path = Path("/proc")) -> int:
    """Print what was asked for; returns the exit code."""
    try:
        machine = load_machine(folder)
    except MachineError:
        print("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
        return 9
    if machine.gpus == 0:
        print("No devices were found")
        return 6
    if machine.faults().gpu_lost:
        print(
            "Unable to determine the device handle for GPU0: 0000:1B:00.0: GPU is lost.  Reboot the system to recover"
        )
        return 15
    used = engine_runs(proc)
    if "-L" in arguments or "--list-gpus" in arguments:
        for index in range(machine.gpus):
            print(f"GPU {index}: {machine.accelerator} (UUID: {uuid(machine, index)})")
        return 0
    query = next((word for word in arguments if word.startswith("--query-gpu=")), None)
    if query is not None:
        return _query(machine, query.partition("=")[2].split(","), arguments, used=used)
    print("\n".join(table(machine, used=used)))
    return 0


def engine_runs(proc: Path) -> bool:
    """Whether a simulated engine runs among the processes in sight."""
    for entry in proc.glob("[0-9]*/cmdline"):
        try:
            if b"sglpool.sandbox.engine\0" in entry.read_bytes():
                return True
        except OSError:
            continue
    return False


def uuid(machine: Machine, index: int) -> str:
    """A stable identity for one GPU of a pod."""
    digest = hashlib.sha256(f"{machine.node}/{machine.pod}/{index}".encode()).hexdigest()
    return f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"


def _query(machine: Machine, fields: Sequence[str], arguments: Sequence[str], *, used: bool) -> int:
    form = next((word.partition("=")[2] for word in arguments if word.startswith("--format=")), "csv")
    plain = "nounits" in form.split(",")
    rows = [_values(machine, index, used=used) for index in range(machine.gpus)]
    unknown = [field for field in fields if field.strip() not in rows[0]]
    if unknown:
        print(f'Field "{unknown[0]}" is not a valid field to query.')
        return 2
    names = [field.strip() for field in fields]
    if "noheader" not in form.split(","):
        print(", ".join(names if plain else [f"{name}{_unit(rows[0][name][1])}" for name in names]))
    for row in rows:
        print(", ".join(row[name][0] + (f" {row[name][1]}" if row[name][1] and not plain else "") for name in names))
    return 0


def _unit(unit: str) -> str:
    return f" [{unit}]" if unit else ""


def _values(machine: Machine, index: int, *, used: bool) -> dict[str, tuple[str, str]]:
    """Value and unit of every field that can be queried."""
    in_use = round(machine.gpu_memory_mib * _USED_SHARE) if used else 0
    return {
        "index": (str(index), ""),
        "name": (machine.accelerator, ""),
        "gpu_name": (machine.accelerator, ""),
        "uuid": (uuid(machine, index), ""),
        "driver_version": (DRIVER, ""),
        "memory.total": (str(machine.gpu_memory_mib), "MiB"),
        "memory.used": (str(in_use), "MiB"),
        "memory.free": (str(machine.gpu_memory_mib - in_use), "MiB"),
        "utilization.gpu": ("0", "%"),
        "utilization.memory": ("0", "%"),
        "temperature.gpu": ("31", ""),
        "power.draw": ("142.00", "W"),
        "power.limit": ("1000.00", "W"),
        "ecc.errors.uncorrected.volatile.total": ("0", ""),
    }


def table(machine: Machine, *, used: bool) -> list[str]:
    """The lines of the table that the bare command prints."""
    lines = [
        time.strftime("%a %b %d %H:%M:%S %Y"),
        "+" + "-" * 89 + "+",
        f"| NVIDIA-SMI {DRIVER} (simulated)     Driver Version: {DRIVER}     CUDA Version: {CUDA}".ljust(90) + "|",
        "|" + "-" * 41 + "+" + "-" * 24 + "+" + "-" * 22 + "|",
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
        "|" + "=" * 41 + "+" + "=" * 24 + "+" + "=" * 22 + "|",
    ]
    for index in range(machine.gpus):
        in_use = round(machine.gpu_memory_mib * _USED_SHARE) if used else 0
        memory = f"{in_use}MiB / {machine.gpu_memory_mib}MiB"
        lines += [
            f"| {index:3}  {machine.accelerator[:24]:24}  On       |   00000000:{0x1B + 16 * index:02X}:00.0 Off |"
            "                    0 |",
            f"| N/A   31C    P0            142W / 1000W | {memory:>22} |      0%      Default |",
            "+" + "-" * 41 + "+" + "-" * 24 + "+" + "-" * 22 + "+",
        ]
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
