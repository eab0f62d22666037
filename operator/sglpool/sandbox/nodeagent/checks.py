"""One look at a container, as probes and hooks take it: a command in it, an HTTP request, a TCP connection.

Not here: how often to look and what a result does (`probes`), and the hooks' part in a container's life (`hooks`).
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from urllib.parse import urljoin

import aiohttp
import yarl

from sglpool.sandbox.apiserver import Manifest
from sglpool.sandbox.nodeagent.ports import Container

MAX_OUTPUT_CHARS = 10 * 1024
_MAX_REDIRECTS = 10
_USER_AGENT = "kube-probe/1.37"


class Unsupported(Exception):
    """A kind of check that the sandbox does not have; the text says what to use."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a check found.

    Attributes:
        ok: Whether the container passed.
        output: What a reader of the event wants to see.
    """

    ok: bool
    output: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """A running container and what is needed to reach it."""

    container: Container
    spec: Manifest
    pod_ip: str


async def check(action: Manifest, target: Target, *, timeout_s: float) -> Outcome:
    """Look once.

    Raises:
        Unsupported: `action` is of a kind that the sandbox cannot do.
        OSError: A command could not be run at all, which says nothing about the container.
    """
    if command := action.get("exec"):
        return await _exec(list(command.get("command") or ()), target, timeout_s=timeout_s)
    if request := action.get("httpGet"):
        return await _http_get(request, target, timeout_s=timeout_s)
    if socket := action.get("tcpSocket"):
        return await _tcp_socket(socket, target, timeout_s=timeout_s)
    if "grpc" in action:
        raise Unsupported("the sandbox has no grpc probes; use httpGet, tcpSocket or exec")
    raise Unsupported(f"the sandbox does not know this kind of probe: {', '.join(sorted(action)) or 'none given'}")


async def _exec(command: list[str], target: Target, *, timeout_s: float) -> Outcome:
    result = await target.container.exec(command, timeout_s=timeout_s)
    if result.code is None:
        return Outcome(False, f'command timed out: "{" ".join(command)}" timed out after {timeout_s:g}s')
    return Outcome(result.code == 0, result.output[:MAX_OUTPUT_CHARS])


async def _http_get(request: Manifest, target: Target, *, timeout_s: float) -> Outcome:
    host = request.get("host") or target.pod_ip
    port = port_number(request["port"], target.spec)
    path = request.get("path") or "/"
    scheme = str(request.get("scheme", "HTTP")).lower()
    url = f"{scheme}://{host}:{port}{path if path.startswith('/') else '/' + path}"
    headers = {"User-Agent": _USER_AGENT, "Accept": "*/*", "Connection": "close"}
    headers |= {header["name"]: header["value"] for header in request.get("httpHeaders") or ()}
    try:
        async with asyncio.timeout(timeout_s):
            return await _follow(url, headers)
    except TimeoutError:
        why = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
    except aiohttp.ClientConnectorError as error:
        why = f"dial tcp {host}:{port}: connect: {_words(error.os_error)}"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        why = str(error) or type(error).__name__
    return Outcome(False, f'Get "{url}": {why}')


async def _follow(url: str, headers: dict[str, str]) -> Outcome:
    """Request and follow redirects as long as they stay on the host; one that leaves it counts as an answer."""
    connector = aiohttp.TCPConnector(ssl=False, force_close=True)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
        for _ in range(_MAX_REDIRECTS):
            address = yarl.URL(url, encoded=True)
            async with session.get(address, headers=headers, allow_redirects=False) as response:
                status, location = response.status, response.headers.get("Location", "")
                if status not in (301, 302, 303, 307, 308) or not location:
                    return _verdict(status)
            url = urljoin(url, location)
            if yarl.URL(url, encoded=True).host != address.host:
                return _verdict(status)
    return Outcome(False, f'Get "{url}": stopped after {_MAX_REDIRECTS} redirects')


def _verdict(status: int) -> Outcome:
    if 200 <= status < 400:
        return Outcome(True)
    return Outcome(False, f"HTTP probe failed with statuscode: {status}")


async def _tcp_socket(socket: Manifest, target: Target, *, timeout_s: float) -> Outcome:
    host, port = socket.get("host") or target.pod_ip, port_number(socket["port"], target.spec)
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return Outcome(False, f"dial tcp {host}:{port}: i/o timeout")
    except OSError as error:
        return Outcome(False, f"dial tcp {host}:{port}: connect: {_words(error)}")
    writer.close()
    return Outcome(True)


def port_number(port: int | str, container: Manifest) -> int:
    """A port by number or by name.

    Raises:
        Unsupported: No port of the container has the name.
    """
    if isinstance(port, int) or port.isdecimal():
        return int(port)
    for known in container.get("ports") or ():
        if known.get("name") == port:
            return int(known["containerPort"])
    raise Unsupported(
        f'container {container["name"]} has no port named "{port}"; correct the port in its probe or hook'
    )


def _words(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno else str(error)
