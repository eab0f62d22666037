"""One HTTP request to the API server: credentials, deadline, retries of what is safe to repeat, and our errors.

Credentials and TLS come from the official client's loaders (kubeconfig, exec plugins, the pod's rotating token; a token
that stands in a kubeconfig is read once, as kubectl reads it); the bytes go straight through one aiohttp session,
because building the client's models and going through its generated layers costs more than the request itself. What the
requests mean is `client.py`'s business.
"""

import asyncio
import contextlib
import json
import os
import random
import ssl
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import aiohttp
import yaml
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import (
    KUBE_CONFIG_DEFAULT_LOCATION,
    ConfigException,
    load_incluster_config,
    load_kube_config,
    refresh_token,
)
from yarl import URL

from sglpool import __version__
from sglpool.kube.errors import KubeConfigError, KubeError, Transient, error_from_response
from sglpool.kube.resources import Resource

RequestHook: TypeAlias = Callable[[str, Resource, int, float], None]
"""Called after every attempt with verb, resource, HTTP status (0: no answer) and seconds. For metrics."""

# Each costs 128 KiB of TLS buffers; the usual eight workers have five requests under way at most.
_MAX_CONNECTIONS = 32
_CONNECT_TIMEOUT_S = 10.0
# The API server closes idle connections after 90 s; leaving first avoids sending into a closing one.
_KEEPALIVE_S = 60.0

_MAX_RETRIES = 2
_FIRST_PAUSE_S = 0.1
_PAUSE_FACTOR = 4.0
_LONGEST_RETRY_AFTER_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, ready to send.

    Attributes:
        verb: what errors and metrics call it, such as `apply`.
        method: HTTP method.
        resource: the resource type.
        namespace: namespace for error texts, empty if there is none.
        name: object name for error texts, empty for a list.
        path: URL path and query, already quoted.
        body: JSON-able body, None for no body.
        content_type: media type of the body.
        accept: media type of the answer.
        repeatable: whether sending it twice is the same as sending it once.
        timeout_s: longest time for the whole call, retries and pauses included.
    """

    verb: str
    method: str
    resource: Resource
    namespace: str = ""
    name: str = ""
    path: str
    body: Any = None
    content_type: str = "application/json"
    accept: str = "application/json"
    repeatable: bool = False
    timeout_s: float


class Transport:
    """Sends requests with one session. Made by `open_transport`."""

    def __init__(
        self,
        configuration: Configuration,
        session: aiohttp.ClientSession,
        *,
        on_request: RequestHook | None,
        sleep: Callable[[float], Awaitable[object]],
    ) -> None:
        self._configuration = configuration
        self._session = session
        self._on_request = on_request
        self._sleep = sleep
        self._proxy = configuration.proxy or proxy_for(configuration.host)
        self._server_hostname = configuration.tls_server_name or None

    async def send(self, request: Request) -> Any:
        """Send it and return the parsed JSON answer.

        A repeatable request is sent again, at most twice, after a 429 or a broken connection (aiohttp itself sends
        a GET, PUT or DELETE once more when a kept-alive connection turns out to be closed). A `Retry-After` of
        up to 10 s is obeyed; a longer one is left to the caller.

        Raises:
            KubeError: one of its subclasses.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.timeout_s
        retries = 0
        while True:
            try:
                return await self._attempt(request, deadline - loop.time())
            except Transient as error:
                pause_s = _pause_s(error, retries)
                if (
                    not request.repeatable
                    or retries >= _MAX_RETRIES
                    or pause_s is None
                    or loop.time() + pause_s >= deadline
                ):
                    raise
            retries += 1
            await self._sleep(pause_s)

    async def _attempt(self, request: Request, timeout_s: float) -> Any:
        code, begin = 0, asyncio.get_running_loop().time()
        try:
            code, headers, body = await self._exchange(request, timeout_s)
        except TimeoutError as error:
            raise _no_answer(request, f"no answer from the API server within {timeout_s:.3g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            words = str(error) or type(error).__name__
            raise _no_answer(request, f"the connection to the API server failed: {words}") from error
        finally:
            if self._on_request is not None:
                seconds = asyncio.get_running_loop().time() - begin
                self._on_request(request.verb, request.resource, code, seconds)
        if not 200 <= code < 300:
            raise error_from_response(
                verb=request.verb,
                kind=request.resource.kind,
                namespace=request.namespace,
                name=request.name,
                code=code,
                body=body,
                headers=headers,
            )
        try:
            return json.loads(body)
        except ValueError as error:
            raise _no_answer(request, f"the API server's answer is not JSON: {body[:80]!r}") from error

    async def _exchange(self, request: Request, timeout_s: float) -> tuple[int, Mapping[str, str], bytes]:
        """One HTTP request; status, headers and body of its answer."""
        headers = {"Content-Type": request.content_type, "Accept": request.accept}
        # Asks the credential loader every time: that is how a rotated token is noticed.
        token = await self._configuration.get_api_key_with_prefix("BearerToken")
        if token:
            headers["Authorization"] = token.strip()
        data = None if request.body is None else json.dumps(request.body, separators=(",", ":")).encode()
        async with self._session.request(
            request.method,
            URL(self._configuration.host + request.path, encoded=True),
            data=data,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_TIMEOUT_S),
            allow_redirects=False,
            proxy=self._proxy,
            server_hostname=self._server_hostname,
        ) as response:
            return response.status, response.headers, await response.read()


@contextlib.asynccontextmanager
async def open_transport(
    kubeconfig: str | None,
    *,
    on_request: RequestHook | None = None,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> AsyncIterator[Transport]:
    """Load credentials, open a session, and close it at the end. Nothing is sent yet.

    Args:
        kubeconfig: path of a kubeconfig; None takes the pod's ServiceAccount when in a pod, else `$KUBECONFIG`,
            else `~/.kube/config`.
        on_request: see `RequestHook`.
        sleep: what waits between retries.

    Raises:
        KubeConfigError: no usable credentials.
    """
    configuration = Configuration()
    # Python 3.13 refuses cluster CAs without the newer extensions, which kubectl accepts and many clusters have.
    # Chain and host name are verified all the same.
    configuration.disable_strict_ssl_verification = True
    configuration.connection_pool_maxsize = _MAX_CONNECTIONS
    loader = await _load_credentials(configuration, kubeconfig)
    try:
        ssl_context = RESTClientObject(configuration).ssl_context
    except OSError as error:  # ssl.SSLError among them
        raise KubeConfigError(f"{_source(kubeconfig)}: cannot use its certificates: {error}") from error
    session = _session(ssl_context)
    # Ends at once unless the kubeconfig's tokens come from a program that must be asked again.
    refresher = asyncio.create_task(refresh_token(loader, configuration)) if loader is not None else None
    try:
        yield Transport(configuration, session, on_request=on_request, sleep=sleep)
    finally:
        if refresher is not None:
            refresher.cancel()
            await asyncio.gather(refresher, return_exceptions=True)
        await session.close()


def _session(ssl_context: ssl.SSLContext) -> aiohttp.ClientSession:
    # Not trust_env: it would look for a ~/.netrc in a thread at every request, and refuse to send when it has one.
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=_MAX_CONNECTIONS, ssl=ssl_context, keepalive_timeout=_KEEPALIVE_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={
            "Accept": "application/json",
            # Inside a cluster compression costs more CPU on both sides than it saves.
            "Accept-Encoding": "identity",
            "User-Agent": f"sglpool/{__version__}",
        },
    )


async def _load_credentials(configuration: Configuration, kubeconfig: str | None) -> Any:
    """Fill the configuration; returns the kubeconfig's loader, None in a pod."""
    try:
        if kubeconfig is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
            load_incluster_config(configuration)
            return None
        path = _kubeconfig_path(kubeconfig)
        return await load_kube_config(config_file=path, client_configuration=configuration, persist_config=False)
    except (ConfigException, OSError, ValueError, TypeError, yaml.YAMLError) as error:
        words = " ".join(str(error).split())
        raise KubeConfigError(
            f"{_source(kubeconfig)}: {words}; name another file with --kubeconfig or $KUBECONFIG"
        ) from error


def _kubeconfig_path(kubeconfig: str | None) -> str:
    path = kubeconfig or os.environ.get("KUBECONFIG") or KUBE_CONFIG_DEFAULT_LOCATION
    return os.pathsep.join(str(Path(part).expanduser()) for part in path.split(os.pathsep) if part)


def _source(kubeconfig: str | None) -> str:
    if kubeconfig is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "ServiceAccount of this pod"
    return f"kubeconfig {_kubeconfig_path(kubeconfig)}"


def proxy_for(host: str) -> str | None:
    """The proxy that `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` name for the API server."""
    url = urlsplit(host)
    if urllib.request.proxy_bypass(url.netloc):
        return None
    return urllib.request.getproxies().get(url.scheme)


def _pause_s(error: KubeError, retries: int) -> float | None:
    """Seconds until the next attempt; None if another attempt would be wrong or useless."""
    if error.code not in (0, 429):
        return None
    wish_s = getattr(error, "retry_after_s", None) or 0.0
    if wish_s > _LONGEST_RETRY_AFTER_S:
        return None
    backoff_s = _FIRST_PAUSE_S * _PAUSE_FACTOR**retries
    return float(max(wish_s, backoff_s) * random.uniform(1.0, 1.25))


def _no_answer(request: Request, words: str) -> Transient:
    return Transient(
        words,
        verb=request.verb,
        kind=request.resource.kind,
        namespace=request.namespace,
        name=request.name,
    )
