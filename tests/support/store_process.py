"""A real Valkey (or Redis) as a local process, nothing on disk."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

from support.waiting import wait_until


def binary() -> str | None:
    """The server that is installed, if any."""
    return shutil.which("valkey-server") or shutil.which("redis-server")


class StoreProcess:
    """One server on a port of its own; `with` starts and ends it."""

    def __init__(self, *, password: str = "", tls_dir: Path | None = None) -> None:
        """Choose a port; `start` starts it.

        Args:
            password: What clients have to send, if anything.
            tls_dir: Folder with tls.crt and tls.key of localhost; plain TCP when absent.
        """
        self._password = password
        self._tls_dir = tls_dir
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._folder = Path(tempfile.mkdtemp(prefix="store-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """For clients."""
        return f"rediss://localhost:{self.port}" if self._tls_dir else f"redis://127.0.0.1:{self.port}"

    def __enter__(self) -> StoreProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        """Start, and wait until it listens."""
        program = binary()
        assert program is not None, "no valkey-server or redis-server: see system-packages.txt"
        argv = [program, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", *self._access()]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=self._folder)
        wait_until(self._listens, timeout_s=15, describe=(self._folder / "log").read_text, interval_s=0.02)

    def _access(self) -> list[str]:
        access = ["--port", str(self.port)]
        if self._tls_dir is not None:
            files = ["--tls-cert-file", f"{self._tls_dir}/tls.crt", "--tls-key-file", f"{self._tls_dir}/tls.key"]
            access = ["--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "no", *files]
        return [*access, "--requirepass", self._password] if self._password else access

    def _listens(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(timeout=10)

    def hang(self) -> None:
        """Let it take connections and answer nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it answer again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
