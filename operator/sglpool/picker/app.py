"""The picker as a whole: what starts after what, what runs side by side, and how it ends.

Order of the start: homes from file, pods from the API, homes from siblings, one poll of everybody, and only then the
socket that Envoy asks: until then Envoy decides by itself, which is better than by chance. Not here: the parts.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglpool.picker.accesslog import AccessLog
from sglpool.picker.admin import AdminError, AdminGone, EnvoyAdmin
from sglpool.picker.authz import AuthzServer
from sglpool.picker.decider import StoredDecider
from sglpool.picker.endpoint import ask_siblings, build_app, serve
from sglpool.picker.files import write_json
from sglpool.picker.fleet import Fleet
from sglpool.picker.initial import DIGEST_FILE, digest, read_keys
from sglpool.picker.leaving import asked_to_leave, leave
from sglpool.picker.ledger import Ledger
from sglpool.picker.metrics import Metrics
from sglpool.picker.pods import PodView, view
from sglpool.picker.polls import Polls
from sglpool.picker.snapshots import Snapshots
from sglpool.picker.views import Gauges, Views
from sglpool.picker.watch import Account, PodEvent, PodWatch
from sglpool.routing.pickerconfig import (
    ACCESS_LOG,
    ADMIN_SOCKET,
    AUTHZ_SOCKET,
    EDS_FILE,
    HOMES_FILE,
    PickerConfig,
    PickerConfigError,
)
from sglpool.routing.types import PolicyConfig

if TYPE_CHECKING:
    from sglpool.picker.store import ValkeyStore

TURN_S = 1.0
KEYS_S = 2.0
EDS_SETTLE_S = 0.02
FIRST_READINGS_S = 1.0
FIRST_LOOK_S = 0.01
INIT_LIMIT_S = 30.0

_LOG = logging.getLogger("sglpool.picker")


@dataclass(frozen=True, slots=True, kw_only=True)
class PickerOptions:
    """What differs from pod to pod.

    Attributes:
        config: The pool's settings.
        config_path: Their file.
        account: Where the API server is.
        pod_name: Our pod's name.
        pod_uid: Our pod's uid.
        restarts: Pickers of this container that ended before this one.
        beat: Called once in a while, as a sign of life.
    """

    config: PickerConfig
    config_path: Path
    account: Account
    pod_name: str
    pod_uid: str
    restarts: int = 0
    beat: Callable[[], None] = lambda: None


def policy_config(config: PickerConfig) -> PolicyConfig:
    """The policy's constants with the pool's overrides.

    Raises:
        PickerConfigError: An override is unknown or out of range.
    """
    kinds = {item.name: str(item.type) for item in fields(PolicyConfig)}
    chosen: dict[str, Any] = {"prefill_tokens_per_s": config.prefill_tokens_per_s}
    for name, value in config.policy.items():
        if name not in kinds:
            raise PickerConfigError(f"picker config: policy.{name} is unknown: known are {', '.join(sorted(kinds))}")
        chosen[name] = int(value) if kinds[name] == "int" else float(value)
    try:
        return PolicyConfig(**chosen)
    except ValueError as problem:
        raise PickerConfigError(f"picker config: {problem}") from problem


class PickerApp:
    """One picker."""

    def __init__(self, options: PickerOptions) -> None:
        """Put the parts together; nothing runs yet."""
        self._options = options
        config = self._config = options.config
        self._shared = Path(config.shared_dir)
        self.metrics = Metrics()
        self.metrics.restarts.inc(options.restarts)
        self.ledger = Ledger(policy_config(config), self.metrics, random.Random(), time.time)
        self.fleet = Fleet(config, self.ledger, self._changed)
        self._snapshots = Snapshots(self._shared / HOMES_FILE, self.ledger.state, time.time)
        self._views = Views(
            pool=config.pool,
            router=options.pod_name,
            ledger=self.ledger,
            fleet=self.fleet,
            has_store=bool(config.store_url),
        )
        self.metrics.registry.register(Gauges(self._views))
        self._eds_due = asyncio.Event()
        self._synced = asyncio.Event()
        self._stopping = asyncio.Event()
        self._turned_s = time.monotonic()
        self._polls: Polls | None = None
        self._leaving: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        async with AsyncExitStack() as stack:
            tasks = await stack.enter_async_context(_Background())
            await self._start(stack, tasks)
            await tasks.until(self._stopping)
        await self._snapshots.save()

    # The start.

    async def _start(self, stack: AsyncExitStack, tasks: _Background) -> None:
        _LOG.info("%d conversations from file", self._snapshots.load())
        await self._serve_state(stack)
        admin = await stack.enter_async_context(EnvoyAdmin(self._shared / ADMIN_SOCKET))
        self._polls = await stack.enter_async_context(
            Polls(self.fleet, self.ledger, self.metrics, max_queued_requests=self._config.max_queued_requests)
        )
        store = self._store()
        decider = StoredDecider(self.ledger, store)
        log = AccessLog(self._shared / ACCESS_LOG, decider.ended, admin.reopen_logs, self.metrics)
        watch = await stack.enter_async_context(
            PodWatch(
                self._options.account,
                self._config.namespace,
                self._config.label_selector,
                self.metrics.watch_restarts.inc,
            )
        )
        tasks.start(self._turn(admin))
        tasks.start(self._snapshots.run())
        tasks.start(self._watch(watch))
        if not await tasks.until(self._synced, self._stopping):
            return
        tasks.start(self._write_endpoints())
        await self._learn_from_siblings()
        if store is not None:
            tasks.start(store.run())
        await self._first_readings(store)
        # Entries of requests that ended while nobody was here: replicas must be known before they are read.
        tasks.start(log.run())
        server = AuthzServer(self._shared / AUTHZ_SOCKET, decider, self.metrics)
        await server.start()
        stack.push_async_callback(server.stop)
        _calm_garbage_collection()
        _LOG.info("picking among %d replicas", len(self.fleet.members))

    async def _serve_state(self, stack: AsyncExitStack) -> None:
        app = build_app(
            views=self._views,
            registry=self.metrics.registry,
            state=self.ledger.state,
            idle_turn_s=lambda: time.monotonic() - self._turned_s,
        )
        runner = await serve(app, self._config.listen_host, self._config.state_port)
        stack.push_async_callback(runner.cleanup)

    async def _learn_from_siblings(self) -> None:
        siblings = self.fleet.siblings(self._options.pod_uid)
        if siblings:
            port = self._config.state_port
            known = await ask_siblings([f"{pod.ip}:{port}" for pod in siblings], self.ledger.state, time.time)
            _LOG.info("%d conversations after asking siblings", known)

    async def _first_readings(self, store: ValkeyStore | None) -> None:
        """Ask every replica, and the store, once, so that the first picks know loads and homes.

        Whoever is late is not waited for: Envoy decides by itself meanwhile.
        """
        assert self._polls is not None
        limit_s = time.monotonic() + FIRST_READINGS_S
        ready = [member for member in self.fleet.members.values() if member.pod.ready]
        polls = {asyncio.ensure_future(self._polls.poll(member)) for member in ready}
        if polls:
            _, late = await asyncio.wait(polls, timeout=FIRST_READINGS_S)
            for poll in late:
                poll.cancel()
        for _ in range(int(FIRST_READINGS_S / FIRST_LOOK_S)):
            if store is None or store.available or time.monotonic() > limit_s:
                return
            await asyncio.sleep(FIRST_LOOK_S)

    def _store(self) -> ValkeyStore | None:
        config = self._config
        if not config.store_url:
            return None
        # Only where there is a store: its client is a tenth of the picker's memory.
        from sglpool.picker.store import ValkeyStore, connect

        files = (config.store_password_file, config.store_ca_file)
        password_file, ca_file = (Path(path) if path is not None else None for path in files)
        return ValkeyStore(
            connect(config.store_url, password_file, ca_file=ca_file),
            pool_uid=config.pool_uid,
            router=self._options.pod_name,
            siblings=lambda: [pod.name for pod in self.fleet.siblings(self._options.pod_uid)],
            ledger=self.ledger,
            metrics=self.metrics,
        )

    # What runs side by side.

    async def _watch(self, watch: PodWatch) -> None:
        async for event in watch.events():
            self._take(event)

    def _take(self, event: PodEvent) -> None:
        pods = [pod for raw in event.pods if (pod := _view(raw)) is not None]
        if event.type == "SYNC":
            self.fleet.sync(pods)
            self._synced.set()
        elif event.type == "DELETED":
            for pod in pods:
                self.fleet.gone(pod.uid)
        else:
            for pod in pods:
                self.fleet.put(pod)
        if self._polls is not None:
            self._polls.follow()

    def _changed(self) -> None:
        self._eds_due.set()

    async def _write_endpoints(self) -> None:
        while True:
            await self._eds_due.wait()
            # Many pods change together: one file for all of them.
            await asyncio.sleep(EDS_SETTLE_S)
            self._eds_due.clear()
            write_json(self._shared / EDS_FILE, self.fleet.endpoints())

    async def _turn(self, admin: EnvoyAdmin) -> None:
        """The picker's clock: everything that happens once in a while."""
        keys_s = time.monotonic()
        while True:
            await asyncio.sleep(TURN_S)
            now_s = self._turned_s = time.monotonic()
            self._options.beat()
            await self._confirm(admin)
            self.fleet.mark_full()
            self._look_for_the_end(admin)
            if now_s - keys_s >= KEYS_S:
                keys_s = now_s
                await self._refresh_listener()

    async def _confirm(self, admin: EnvoyAdmin) -> None:
        asked_at_s = self.ledger.clock_s()
        try:
            active = await admin.active_requests()
        except AdminGone:
            # Without Envoy nothing is in flight.
            active = {}
        except AdminError as problem:
            _LOG.warning("Envoy's admin: %s", problem)
            return
        self.ledger.confirm(active, asked_at_s)

    def _look_for_the_end(self, admin: EnvoyAdmin) -> None:
        own = self.fleet.routers.get(self._options.pod_uid)
        going = (own is not None and own.terminating) or asked_to_leave(self._shared)
        if going and self._leaving is None:
            self._views.leaving = True
            self._leaving = asyncio.ensure_future(leave(admin, self._shared, grace_s=self._config.drain_grace_s))

    async def _refresh_listener(self) -> None:
        """Have the listener written anew when the API keys have changed."""
        if self._config.api_keys_dir is None:
            return
        with suppress(OSError):
            written = self._shared / DIGEST_FILE
            if written.exists() and written.read_text() == digest(read_keys(self._config.api_keys_dir)):
                return
            arguments = ("picker", "--init", "--config", str(self._options.config_path))
            process = await asyncio.create_subprocess_exec(sys.executable, "-m", "sglpool", *arguments)
            try:
                async with asyncio.timeout(INIT_LIMIT_S):
                    code = await process.wait()
                _LOG.info("API keys have changed: the listener was written anew (exit code %d)", code)
            except TimeoutError:
                process.kill()
                await process.wait()
                _LOG.error("API keys have changed, but the listener was not written within %g s", INIT_LIMIT_S)


class _Background:
    """Tasks that run until the picker ends; when one fails, the picker fails: the kubelet starts it anew."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> _Background:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something side by side."""
        self._tasks.add(asyncio.ensure_future(work))

    async def until(self, wanted: asyncio.Event, *others: asyncio.Event) -> bool:
        """Wait for one of some events.

        Returns:
            Whether it was the first.

        Raises:
            Exception: what a task failed with.
        """
        waits = [asyncio.ensure_future(event.wait()) for event in (wanted, *others)]
        try:
            done, _ = await asyncio.wait({*waits, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        for task in done & self._tasks:
            task.result()
        return wanted.is_set()


def _view(pod: Any) -> PodView | None:
    try:
        return view(pod)
    except (KeyError, TypeError, AttributeError) as problem:
        _LOG.warning("a pod that cannot be read: %r", problem)
        return None


def _calm_garbage_collection() -> None:
    """Conversations live long: looking at all of them again and again would hold up picks by many milliseconds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


def run_picker(options: PickerOptions) -> None:
    """Run a picker until it is told to end."""
    import uvloop

    async def main() -> None:
        await PickerApp(options).run()

    uvloop.run(main())
