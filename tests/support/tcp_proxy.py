"""A TCP proxy that can be slow, silent or away: an API server behind a network that has a bad day."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import yaml

_CHUNK_BYTES = 65536
_LOOK_S = 0.05


class TcpProxy:
    """Passes bytes on between 127.0.0.1 and a server; `mode` decides what becomes of them.

    Attributes:
        port: Where it listens.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._away = threading.Event()
        self._silent = threading.Event()
        self._end = threading.Event()

    def away(self) -> None:
        """Cut every connection, and each new one as soon as it is made."""
        self._away.set()

    def silent(self) -> None:
        """Take connections and bytes, and pass nothing on."""
        self._silent.set()

    def back(self) -> None:
        self._away.clear()
        self._silent.clear()

    def kubeconfig(self, original: Path, copy: Path) -> Path:
        """Write a kubeconfig that leads through here."""
        config = yaml.safe_load(original.read_text())
        for cluster in config["clusters"]:
            cluster["cluster"]["server"] = f"https://127.0.0.1:{self.port}"
        copy.write_text(yaml.safe_dump(config))
        return copy

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._listener.close()

    def _accept(self) -> None:
        while not self._end.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            if self._away.is_set():
                return
            with socket.create_connection(self._target, timeout=10) as server:
                other = {client: server, server: client}
                while not self._end.is_set() and not self._away.is_set():
                    ready, _, _ = select.select(list(other), [], [], _LOOK_S)
                    if self._silent.is_set():
                        self._end.wait(_LOOK_S)
                        continue
                    for side in ready:
                        data = side.recv(_CHUNK_BYTES)
                        if not data:
                            return
                        other[side].sendall(data)


def proxy_to(kubeconfig: Path) -> TcpProxy:
    """A proxy to the API server of a kubeconfig."""
    server = urlsplit(yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["server"])
    assert server.hostname
    assert server.port
    return TcpProxy(server.hostname, server.port)
