"""The operator process, wired together: the only place where clocks, clients and tasks are made.

Every part runs as a task of one group; the first that fails ends the process, and Kubernetes starts it anew.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import socket
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

import kopf
from aiohttp import web

from sglpool.catalog import Catalog, load_catalog
from sglpool.controller.autoscaler import Autoscaler
from sglpool.controller.collect import Collector
from sglpool.controller.crd import ServedCRD
from sglpool.controller.execute import LookAgain, NameConflict
from sglpool.controller.handlers import build_registry, build_settings
from sglpool.controller.health import EngineReader, HealthWatch
from sglpool.controller.http import build_app
from sglpool.controller.metrics import Metrics
from sglpool.controller.queue import KeyedQueue
from sglpool.controller.reconcile import Reconciler
from sglpool.controller.resync import PERIOD_S, Resync
from sglpool.controller.rights import Rights
from sglpool.controller.store import PoolKey, Store
from sglpool.kube import EventRecorder, KubeClient, KubeError, LeaderLease, NotFound, Resource
from sglpool.kube.resources import POOLS
from sglpool.kube.rights import LEASE_NAME
from sglpool.signals import Sources, Tokens

_LOG = logging.getLogger(__name__)

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


CRD_PATIENCE_S = 10.0
CRD_PAUSE_S = 0.5


class MissingCRD(Exception):
    """The API server does not know InferencePools."""


class WatchForbidden(Exception):
    """The right to watch was taken away. The process should end: the next one waits for it, and says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorOptions:
    """What the command line decides.

    Attributes:
        kubeconfig: Path of a kubeconfig; None for the pod's own account, or $KUBECONFIG.
        namespaces: Namespaces to serve; None for all.
        host: Address of the HTTP endpoints.
        port: Their port; 0 for a free one.
        workers: Pools reconciled side by side.
        leader_election: Whether to wait for a Lease first.
        resync_period_s: Seconds between full listings.
        clock_speed: Seconds of whoever watches load and health in a second of the wall clock; 1 but in rehearsals.
        catalog: Known models and GPU types.
        router_image: Image of routers whose pool names none, empty for the one of this version.
    """

    kubeconfig: str | None = None
    namespaces: tuple[str, ...] | None = None
    host: str = "0.0.0.0"
    port: int = 8080
    workers: int = 8
    leader_election: bool = False
    resync_period_s: float = PERIOD_S
    clock_speed: float = 1.0
    catalog: Catalog = field(default_factory=load_catalog)
    router_image: str = ""


async def run_operator(options: OperatorOptions) -> None:
    """Run the operator until SIGTERM or SIGINT.

    Raises:
        MissingCRD: The CRD is not installed.
        KubeError: The API server cannot be read at start.
        LeaseLost: Another replica became the leader.
    """
    _return_large_blocks()
    if options.kubeconfig:
        os.environ["KUBECONFIG"] = options.kubeconfig
    stop = asyncio.Event()
    _stop_on_signals(stop)
    metrics = Metrics()

    def count(verb: str, resource: Resource, code: int, seconds: float) -> None:
        metrics.observe_request(verb, resource.plural, code, seconds)

    async with KubeClient.connect(options.kubeconfig, on_request=count) as kube:
        operator = Operator(options, kube, metrics, stop)
        await operator.run()


class Operator:
    """One operator process.

    Args:
        options: What the command line decided.
        kube: The API server.
        metrics: Figures.
        stop: Set to end.
    """

    def __init__(self, options: OperatorOptions, kube: KubeClient, metrics: Metrics, stop: asyncio.Event) -> None:
        self._options = options
        self._kube = kube
        self._metrics = metrics
        self._stop = stop
        self._queue: KeyedQueue[PoolKey] = KeyedQueue(on_start=metrics.queue_wait.observe)
        self._store = Store()
        self._catalog = options.catalog
        self._node_memory_bytes: dict[str, int] = {}
        self._collector = Collector(kube)
        self._stands_by = False
        self._rights = Rights(
            kube,
            namespaces=options.namespaces,
            lease_namespace=own_namespace() if options.leader_election else None,
            refusals=lambda: metrics.refused,
            show=metrics.observe_missing,
        )
        self._crd = ServedCRD(lambda: kube.openapi(POOLS), show=metrics.missing_fields.set)
        self._sources = Sources(Tokens(kube))
        self._autoscaler = Autoscaler(
            store=self._store,
            reader=self._sources,
            enqueue=self._queue.add,
            metrics=metrics,
            wall_clock_s=time.time,
            clock_speed=options.clock_speed,
        )
        self._engines = EngineReader()
        self._health = HealthWatch(
            store=self._store,
            reader=self._engines,
            enqueue=self._queue.add,
            metrics=metrics,
            clock_speed=options.clock_speed,
        )
        self._resync = Resync(
            kube=kube,
            namespaces=options.namespaces,
            store=self._store,
            queue=self._queue,
            catalog=self._catalog,
            node_memory_bytes=self._node_memory_bytes,
            collector=self._collector,
            metrics=metrics,
            wall_clock_s=time.time,
            router_image=options.router_image,
        )

    async def run(self) -> None:
        """Serve HTTP, wait for the Lease if asked, then work until the stop."""
        app = build_app(
            queue=self._queue,
            resync=self._resync,
            metrics=self._metrics,
            wall_clock_s=time.time,
            stands_by=lambda: self._stands_by,
            waits_for=lambda: self._rights.waits_for,
        )
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._options.host, self._options.port).start()
            _LOG.info("serving /healthz, /readyz and /metrics on %s", runner.addresses)
            await self._rights.wait(self._stop)
            if not self._stop.is_set():
                await self._run_as_leader()
        finally:
            await runner.cleanup()

    async def _run_as_leader(self) -> None:
        if not self._options.leader_election:
            await self._work()
            return
        lease = LeaderLease(
            self._kube, namespace=own_namespace(), name=LEASE_NAME, identity=f"{_instance()}-{os.getpid()}"
        )
        self._stands_by = True
        leading = asyncio.create_task(lease.run(self._work))
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait({leading, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not leading.done() and not lease.is_leader:
            leading.cancel()
        await asyncio.gather(leading, return_exceptions=self._stop.is_set())
        stopped.cancel()

    async def _work(self) -> None:
        """Watch, list once, then reconcile; the listing comes before the first plan, so that nothing is missed."""
        self._stands_by = False
        self._metrics.leading.set(1)
        await self._find_crd()
        async with (
            EventRecorder(self._kube, instance=_instance()) as events,
            self._sources,
            self._engines,
            self._autoscaler,
            self._health,
            asyncio.TaskGroup() as group,
        ):
            self._store.nodes.watched = await self._rights.may_watch_nodes()
            if not self._store.nodes.watched:
                _LOG.info(
                    "nodes are not read: lost ones go unnoticed, host memory is checked by the catalogue's figures"
                )
            watching = group.create_task(self._watch(), name="watch")
            await self._resync.run_once()
            listing = group.create_task(self._resync.run_for_ever(period_s=self._options.resync_period_s))
            asking = group.create_task(self._rights.run_for_ever())
            comparing = group.create_task(self._crd.run_for_ever())
            await self._queue.run(workers=self._options.workers, handler=self._reconciler(events), stop=self._stop)
            listing.cancel()
            asking.cancel()
            comparing.cancel()
            # Stopped, kopf waits five seconds for tasks that it did not start, such as an open connection to /metrics;
            # cancelled, it does not. Its own have nothing to finish: events only put keys on a queue that has ended.
            watching.cancel()

    async def _find_crd(self) -> None:
        """Return when InferencePools are served: an installation creates the CRD in the moment in which we start.

        Raises:
            MissingCRD: They are not, after a while.
        """
        deadline_s = time.monotonic() + CRD_PATIENCE_S
        while True:
            try:
                await self._kube.list(
                    POOLS, namespace=(self._options.namespaces or (None,))[0], field_selector=_NOTHING
                )
                return
            except NotFound as error:
                if self._stop.is_set() or time.monotonic() > deadline_s:
                    raise MissingCRD(
                        "the API server does not know inferencepools.sglpool.io: install the CRD first, "
                        "`sglpool crd | kubectl apply --server-side -f -`"
                    ) from error
            await asyncio.sleep(CRD_PAUSE_S)

    async def _watch(self) -> None:
        """Kopf's loop. Its end is our stop; a failure raises."""
        started = asyncio.Event()
        taking_back = asyncio.create_task(self._take_signals_back(started))
        # At its end kopf gathers every task that it did not start, those of a running reconcile too, and raises what
        # they raised. Who awaits them deals with that; kopf itself knows none of these errors.
        try:
            with contextlib.suppress(KubeError, NameConflict, LookAgain):
                await kopf.operator(
                    registry=build_registry(
                        self._queue,
                        self._store,
                        watch_nodes=self._store.nodes.watched,
                        kubeconfig=self._options.kubeconfig,
                    ),
                    settings=build_settings(),
                    clusterwide=self._options.namespaces is None,
                    namespaces=self._options.namespaces or (),
                    standalone=True,
                    # Otherwise kopf asks for the user's name, and a container's user often has none.
                    identity=_instance(),  # type: ignore[arg-type]
                    stop_flag=self._stop,
                    ready_flag=started,
                )
        except Exception as error:
            match getattr(error, "status", None):
                case HTTPStatus.NOT_FOUND:
                    raise MissingCRD(
                        "inferencepools.sglpool.io is not served any more: somebody deleted the CRD, and every pool "
                        "with it. Install it again; there is nothing to do until then"
                    ) from error
                case HTTPStatus.FORBIDDEN:
                    raise WatchForbidden(f"a watch is forbidden by now: {error}") from error
            raise
        finally:
            taking_back.cancel()
        self._stop.set()

    async def _take_signals_back(self, started: asyncio.Event) -> None:
        """Kopf takes SIGTERM and SIGINT over, and would tell us five seconds later, when it has ended."""
        await started.wait()
        _stop_on_signals(self._stop)

    def _reconciler(self, events: EventRecorder) -> Reconciler:
        return Reconciler(
            kube=self._kube,
            store=self._store,
            catalog=self._catalog,
            node_memory_bytes=self._node_memory_bytes,
            collector=self._collector,
            autoscaler=self._autoscaler,
            health=self._health,
            events=events,
            metrics=self._metrics,
            wall_clock_s=time.time,
            clock=time.monotonic,
            router_image=self._options.router_image,
        )


def _stop_on_signals(stop: asyncio.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)


def _return_large_blocks() -> None:
    """Have glibc map large blocks on their own, so that they go back to the system when they are freed.

    Left alone it raises the bound to the largest block that it saw freed; from then on bodies of requests and pages
    of listings leave holes in the heap: 40 MiB of them after a thousand new pools. Other C libraries have no such
    bound, and no such function.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)


_M_MMAP_THRESHOLD = -3  # malloc.h
_LARGE_BLOCK_BYTES = 32 * 1024

_NOTHING = "metadata.name=-"
"""A selector that nothing matches: the answer tells whether the resource exists, at no cost."""


def own_namespace() -> str:
    """Namespace of this pod, `default` outside a cluster."""
    return _NAMESPACE_FILE.read_text().strip() if _NAMESPACE_FILE.exists() else "default"


def _instance() -> str:
    return os.environ.get("POD_NAME") or socket.gethostname()
