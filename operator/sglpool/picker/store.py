"""Homes that several routers share, in Valkey (or Redis): read before a pick, written behind it.

Everything in it is a hint: when it does not answer within 20 ms a pick goes on with what this router knows, and when
it fails several times in a row a breaker opens: then the policy stops moving conversations, nothing is written, and
the heartbeat alone asks whether it is back. Not here: what the policy does without it (`routing.rules`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import RedisError

from sglpool.picker.exchange import Exchange
from sglpool.picker.ledger import Ledger
from sglpool.picker.metrics import Metrics
from sglpool.routing.records import RecordError
from sglpool.routing.types import FINISH_TOOL_CALLS, ConversationKey

READ_LIMIT_S = 0.02
WRITE_LIMIT_S = 0.25
CONNECT_LIMIT_S = 0.25
WRITE_PERIOD_S = 0.02
HEARTBEAT_S = 1.0
OPEN_AFTER = 3
"""Failures in a row that open the breaker."""
MAX_WAITING = 20_000
"""Writes that may wait; beyond it the oldest is dropped: the next request of its conversation writes again."""
MAX_BATCH = 256
MAX_RECORD_BYTES = 8192

_SETTLE = """
local home = redis.call('HGET', KEYS[1], 'home')
if home and home ~= ARGV[1] and home ~= ARGV[2] then return home end
redis.call('HSET', KEYS[1], 'home', ARGV[2], 'record', ARGV[3], 'router', ARGV[5])
redis.call('EXPIRE', KEYS[1], ARGV[4])
return false
"""
"""Write a record if its home is the one that we saw, or ours already; else give back the home that is there."""

_REFUSED = (redis.ConnectionError, ConnectionError)
_FAILURES = (RedisError, OSError, TimeoutError, asyncio.IncompleteReadError)
_LOG = logging.getLogger("sglpool.picker")


class ValkeyStore:
    """The store of one router. `run` keeps it going."""

    def __init__(
        self,
        client: redis.Redis,
        *,
        pool_uid: str,
        router: str,
        siblings: Callable[[], Sequence[str]],
        ledger: Ledger,
        metrics: Metrics,
        read_limit_s: float = READ_LIMIT_S,
        write_limit_s: float = WRITE_LIMIT_S,
    ) -> None:
        """Prepare; nothing is asked yet.

        Args:
            client: The connection.
            pool_uid: Prefix of the keys.
            router: Our name among the routers.
            siblings: Names of the other routers.
            ledger: Whose state is shared.
            metrics: Counts errors.
            read_limit_s: Longest wait of a pick.
            write_limit_s: Longest wait of what no pick waits for.
        """
        self._client = client
        self._read_limit_s = read_limit_s
        self._write_limit_s = write_limit_s
        self._prefix = f"sglpool:{pool_uid}"
        self._router = router
        self._siblings = siblings
        self._ledger = ledger
        self._metrics = metrics
        self._exchange = Exchange(ledger, prefix=self._prefix, router=router)
        self._failures = 0
        self._told = ""
        self._wanted: dict[ConversationKey, asyncio.Future[None]] = {}
        self._readers: set[asyncio.Task[None]] = set()
        self._waiting: OrderedDict[ConversationKey, str] = OrderedDict()
        self._writing = False
        # Until the first heartbeat it is not known whether there is a store at all.
        self._set_available(False)

    @property
    def available(self) -> bool:
        """Whether the breaker is closed."""
        return self._ledger.state.store_available

    @property
    def written(self) -> bool:
        """Whether nothing waits to be written."""
        return not self._waiting and not self._writing

    async def run(self) -> None:
        """Heartbeats and writes, for ever."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._beat())
                tasks.create_task(self._write())
        finally:
            await self._client.aclose()

    # Reading.

    async def fetch(self, key: ConversationKey) -> None:
        """Read a conversation together with all others that are wanted in this turn of the event loop."""
        if not self.available:
            return
        future = self._wanted.get(key)
        if future is None:
            if not self._wanted:
                asyncio.get_running_loop().call_soon(self._start_reading)
            future = self._wanted[key] = asyncio.get_running_loop().create_future()
        await asyncio.shield(future)

    def _start_reading(self) -> None:
        wanted, self._wanted = self._wanted, {}
        task = asyncio.ensure_future(self._read(wanted))
        self._readers.add(task)
        task.add_done_callback(self._readers.discard)

    async def _read(self, wanted: dict[ConversationKey, asyncio.Future[None]]) -> None:
        try:
            async with asyncio.timeout(self._read_limit_s):
                pipeline = self._client.pipeline(transaction=False)
                for key in wanted:
                    pipeline.hmget(self._key(key), "record", "router")
                found = await pipeline.execute(raise_on_error=False)
            self._succeeded()
            for key, fields in zip(wanted, found, strict=True):
                if isinstance(fields, list):
                    self._absorb(key, *fields)
        except _FAILURES as problem:
            self._failed(problem)
        finally:
            for future in wanted.values():
                if not future.done():
                    future.set_result(None)

    def _absorb(self, key: ConversationKey, content: object, router: object) -> None:
        if not isinstance(content, bytes) or len(content) > MAX_RECORD_BYTES:
            return
        try:
            record = json.loads(content)
            self._ledger.state.absorb(record, self._ledger.clock_s(), "store")
        except (RecordError, ValueError):
            self._metrics.store_errors.inc()
            return
        if isinstance(router, bytes) and record["last_finish"] == FINISH_TOOL_CALLS:
            # The router that wrote it waits for it to come back.
            self._exchange.took_over(key, router.decode("utf-8", "replace"))

    # Writing.

    def note(self, key: ConversationKey, seen_home: str | None) -> None:
        """Write a conversation soon, unless the store is away: what it missed comes with the next request."""
        if not self.available:
            return
        # Of several changes before a write, the first says what the store is believed to hold.
        self._waiting.setdefault(key, seen_home or "")
        if len(self._waiting) > MAX_WAITING:
            self._waiting.popitem(last=False)

    async def _write(self) -> None:
        while True:
            await asyncio.sleep(WRITE_PERIOD_S)
            while self._waiting and self.available:
                batch = [self._waiting.popitem(last=False) for _ in range(min(MAX_BATCH, len(self._waiting)))]
                self._writing = True
                try:
                    async with asyncio.timeout(self._write_limit_s):
                        await self._write_batch(batch)
                    self._succeeded()
                except _FAILURES as problem:
                    self._failed(problem)
                    for key, seen_home in batch:
                        self._waiting.setdefault(key, seen_home)
                finally:
                    self._writing = False
            _heed_cancellation()
            if not self.available:
                self._waiting.clear()

    async def _write_batch(self, batch: list[tuple[ConversationKey, str]]) -> None:
        state = self._ledger.state
        pipeline = self._client.pipeline(transaction=False)
        written = []
        ttl_s = str(int(state.config.ttl_s))
        for key, seen_home in batch:
            record = state.record(key)
            if record is None or record["home"] is None:
                continue
            home = str(record["home"])
            pipeline.eval(_SETTLE, 1, self._key(key), seen_home, home, json.dumps(record), ttl_s, self._router)
            written.append(key)
        if not written:
            return
        for key, answer in zip(written, await pipeline.execute(raise_on_error=False), strict=True):
            if isinstance(answer, bytes):
                self._lost(key, answer)
            elif isinstance(answer, RedisError):
                raise answer

    def _lost(self, key: ConversationKey, content: bytes) -> None:
        """Another router gave it a home first: that one counts while it can serve, else ours."""
        theirs = content.decode("utf-8", "replace")
        replica = self._ledger.replicas.get(theirs)
        conversation = self._ledger.state.get(key)
        if replica is not None and replica.healthy and conversation is not None:
            self._ledger.state.set_home(conversation, theirs)
        else:
            self._waiting[key] = theirs

    # The heartbeat.

    async def _beat(self) -> None:
        while True:
            try:
                await self._beat_once()
            except _FAILURES as problem:
                self._failed(problem, for_sure=isinstance(problem, _REFUSED))
            _heed_cancellation()
            await asyncio.sleep(HEARTBEAT_S)

    async def _beat_once(self) -> None:
        try:
            async with asyncio.timeout(self._write_limit_s):
                await self._exchange_counts()
        except _REFUSED:
            # A connection that the server had closed says nothing about the server: once more, on a new one.
            await self._client.connection_pool.disconnect(inuse_connections=False)
            async with asyncio.timeout(self._write_limit_s):
                await self._exchange_counts()
        self._succeeded()
        if not self.available:
            # Whatever was open before the failure is not to be trusted.
            await self._client.connection_pool.disconnect(inuse_connections=False)
            _LOG.info("store: it answers")
            self._set_available(True)

    async def _exchange_counts(self) -> None:
        """Tell the other routers what we have, and hear what they have."""
        pipeline = self._client.pipeline(transaction=False)
        self._exchange.ask(pipeline, list(self._siblings()))
        self._exchange.hear(await pipeline.execute(raise_on_error=False))

    # The breaker.

    def _succeeded(self) -> None:
        self._failures = 0
        self._told = ""

    def _failed(self, problem: BaseException, *, for_sure: bool = False) -> None:
        self._metrics.store_errors.inc()
        self._failures += 1
        if self.available and (for_sure or self._failures >= OPEN_AFTER):
            self._set_available(False)
            self._exchange.hear_nobody()
        reason = str(problem) or type(problem).__name__
        if not self.available and reason != self._told:
            # Also of one that has never answered: a wrong password looks like no store at all.
            self._told = reason
            _LOG.warning("store: %s; going on with what this router knows", reason)

    def _set_available(self, available: bool) -> None:
        self._ledger.state.store_available = available

    def _key(self, key: ConversationKey) -> str:
        return f"{self._prefix}:c:{key.session}{key.conversation}"


def _heed_cancellation() -> None:
    """End now if this task was cancelled: the client sometimes takes that for a time-out of its own."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class _PasswordFile(CredentialProvider):
    """The password that a mounted Secret holds when a connection is opened: one that was changed needs no restart."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get_credentials(self) -> tuple[str]:
        return (self._path.read_text(encoding="utf-8").strip(),)

    async def get_credentials_async(self) -> tuple[str]:
        return await asyncio.to_thread(self.get_credentials)


def connect(
    url: str, password_file: Path | None, *, ca_file: Path | None = None, limit_s: float = CONNECT_LIMIT_S
) -> redis.Redis:
    """A client that neither waits long nor tries again: the next heartbeat does.

    Args:
        url: redis:// or rediss://, without credentials.
        password_file: Its content is sent.
        ca_file: CA that is trusted beside the system's, with rediss:// only.
        limit_s: Longest wait for a connection.
    """
    trust: dict[str, Any] = {"ssl_ca_certs": str(ca_file)} if ca_file is not None else {}
    client = redis.Redis.from_url(
        url,
        credential_provider=_PasswordFile(password_file) if password_file is not None else None,
        socket_connect_timeout=limit_s,
        socket_keepalive=True,
        max_connections=32,
        retry=Retry(NoBackoff(), 0),
        client_name="sglpool-router",
        **trust,
    )
    if issubclass(client.connection_pool.connection_class, redis.SSLConnection):
        client.connection_pool.connection_class = _sharing_tls(ca_file)
    return client


def _sharing_tls(ca_file: Path | None) -> type[redis.SSLConnection]:
    """Connections with one TLS context: making one reads all CAs of the system, and every pick would wait.

    When the CA of a mounted Secret has changed, the context is made anew.
    """
    shared: Any = None
    read_ns = 0

    class Connection(redis.SSLConnection):
        def __init__(self, **options: Any) -> None:
            nonlocal shared
            super().__init__(**options)
            shared = self.ssl_context = shared or self.ssl_context

        async def connect(self) -> None:
            nonlocal read_ns
            changed_ns = ca_file.stat().st_mtime_ns if ca_file is not None else 0  # noqa: ASYNC240 - in memory
            if changed_ns != read_ns:
                read_ns, shared.context = changed_ns, None
            await super().connect()  # type: ignore[no-untyped-call]

    return Connection
