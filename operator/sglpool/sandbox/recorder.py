"""Reads a pool once a second for the demo's report: status, pods, nodes, events, and its routers' states.

Level by level: each reading stands alone, and one that fails is a gap. Bounded: what a long run has too much is
thinned. Not here: what is made of the readings (`report`), and the clients' own figures (`traffic`).
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from sglpool.api import names
from sglpool.routing.pickerconfig import STATE_PORT
from sglpool.sandbox.apiserver import ApiServer, Manifest
from sglpool.sandbox.errors import SandboxError
from sglpool.sandbox.nodes import NODES
from sglpool.sandbox.report_data import Event, GpuType, Replica, Sample, State

PERIOD_S = 1.0
ROUTER_LIMIT_S = 1.0
JOIN_LIMIT_S = 30.0
MOST_SAMPLES = 1200
MOST_EVENTS = 500
_POD_REASONS = ("FailedScheduling", "TaintManagerEviction", "BackOff", "Failed")
"""Events of pods that belong to the story; probes and pulls do not."""


class Recorder:
    """Readings of one pool, taken by a thread of its own.

    Args:
        api: The API server.
        pool: Name of the pool.
        namespace: Its namespace.
        clock_s: Time of the recording.
        sessions: How many agent sessions there are now.
    """

    def __init__(
        self, api: ApiServer, pool: str, namespace: str, clock_s: Callable[[], float], sessions: Callable[[], int]
    ) -> None:
        self._api = api
        self._pool = pool
        self._namespace = namespace
        self._clock_s = clock_s
        self._sessions = sessions
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._samples: list[Sample] = []
        self._targets: dict[str, int] = {}
        self._events: dict[str, Event] = {}
        self._old: frozenset[str] | None = None
        self.missed = 0
        """Readings that failed."""

    def start(self) -> None:
        """Begin to read; events from before do not count."""
        self._thread.start()

    def stop(self) -> None:
        """End after the reading under way."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(JOIN_LIMIT_S)

    @property
    def samples(self) -> tuple[Sample, ...]:
        """Readings, oldest first."""
        return tuple(self._samples)

    @property
    def latest(self) -> Sample | None:
        """The last reading."""
        return self._samples[-1] if self._samples else None

    @property
    def events(self) -> tuple[Event, ...]:
        """Events, oldest first."""
        return tuple(sorted(list(self._events.values()), key=lambda event: event.at_s))

    def _run(self) -> None:
        while not self._over.is_set():
            began_s = time.monotonic()
            try:
                self._read()
            except (SandboxError, KeyError, TypeError, ValueError):
                self.missed += 1
            self._over.wait(max(0.05, PERIOD_S - (time.monotonic() - began_s)))

    def _read(self) -> None:
        at_s = self._clock_s()
        self._read_events(at_s)
        path = f"/apis/{names.API_VERSION}/namespaces/{self._namespace}/{names.PLURAL}"
        # From the list: before the pool is applied and after it is deleted there is none, which is no failure.
        pools = [pool for pool in self._api.get(path)["items"] if pool["metadata"]["name"] == self._pool]
        if not pools:
            return
        pods = self._api.get(
            f"/api/v1/namespaces/{self._namespace}/pods?labelSelector={names.LABEL_POOL}%3D{self._pool}"
        )["items"]
        nodes = ready_nodes(self._api.get(NODES)["items"])
        states = [state for pod in pods if (state := _router_state(pod)) is not None]
        sample = sample_of(at_s, pools[0], pods, nodes, states, sessions=self._sessions(), targets=dict(self._targets))
        self._targets |= {gpu.type: gpu.target for gpu in sample.types}
        self._samples.append(sample)
        if len(self._samples) > MOST_SAMPLES:
            del self._samples[1::2]

    def _read_events(self, at_s: float) -> None:
        found = self._api.get(f"/api/v1/namespaces/{self._namespace}/events")["items"]
        if self._old is None:
            self._old = frozenset(event["metadata"]["uid"] for event in found)
        for manifest in found:
            uid = manifest["metadata"]["uid"]
            if uid in self._old or not tells(manifest, self._pool):
                continue
            known = self._events.get(uid)
            if known is not None or len(self._events) < MOST_EVENTS:
                self._events[uid] = event_of(known.at_s if known else at_s, manifest)


def ready_nodes(nodes: Iterable[Manifest]) -> frozenset[str]:
    """Nodes that are there and Ready."""
    return frozenset(node["metadata"]["name"] for node in nodes if _condition(node, "Ready"))


def sample_of(
    at_s: float,
    pool: Manifest,
    pods: Sequence[Manifest],
    nodes: frozenset[str],
    states: Sequence[Mapping[str, Any]],
    *,
    sessions: int = 0,
    targets: Mapping[str, int] = MappingProxyType({}),
) -> Sample:
    """One reading from what the API server and the routers said.

    Args:
        at_s: When.
        pool: The pool.
        pods: All of its pods.
        nodes: Nodes that are Ready.
        states: What its routers answered.
        sessions: Agent sessions that the demo keeps going.
        targets: Running requests of a replica by GPU type, as far as known, for a status that does not say: a change
            that is not carried out leaves what runs as it was.
    """
    status = pool.get("status") or {}
    autoscaling = status.get("autoscaling") or {}
    ready: Mapping[str, Any] = next((item for item in status.get("conditions", ()) if item["type"] == "Ready"), {})
    engines = [pod for pod in pods if _label(pod, names.LABEL_COMPONENT) == names.COMPONENT_ENGINE]
    return Sample(
        at_s=at_s,
        replicas=tuple(
            _replica(pod, nodes, states) for pod in sorted(engines, key=lambda pod: str(pod["metadata"]["name"]))
        ),
        types=tuple(_gpu_type(gpu, targets) for gpu in status.get("gpus", ())),
        sessions=sessions,
        in_flight=sum(int(state["in_flight"]) for state in states) if states else None,
        reason=ready.get("reason", ""),
        decided=autoscaling.get("desired"),
        why=autoscaling.get("reason", ""),
        because=autoscaling.get("message", ""),
    )


def tells(event: Manifest, pool: str) -> bool:
    """Whether an event belongs to the story: the pool's own, nodes that fail, pods that find no place."""
    about = event.get("involvedObject") or {}
    kind, name = about.get("kind", ""), about.get("name", "")
    if kind == names.KIND:
        return bool(name == pool)
    if kind == "Node":
        return event.get("reason") in ("NodeNotReady", "NodeReady", "NodeNotSchedulable", "NodeSchedulable")
    return kind == "Pod" and name.startswith(pool) and event.get("reason") in _POD_REASONS


def event_of(at_s: float, event: Manifest) -> Event:
    """An event as the report shows it."""
    about = event["involvedObject"]
    series = event.get("series") or {}
    return Event(
        at_s=at_s,
        about=f"{about.get('kind', '')} {about.get('name', '')}",
        reason=event.get("reason") or "",
        message=event.get("message") or "",
        warning=event.get("type") == "Warning",
        count=int(series.get("count") or event.get("count") or 1),
    )


def _gpu_type(gpu: Mapping[str, Any], targets: Mapping[str, int]) -> GpuType:
    kind = gpu["type"]
    said = (gpu.get("capacity") or {}).get("targetRunningRequests")
    return GpuType(type=kind, wanted=gpu["desired"], ready=gpu["ready"], target=said or targets.get(kind, 0))


def _replica(pod: Manifest, nodes: frozenset[str], states: Sequence[Mapping[str, Any]]) -> Replica:
    views = [view for state in states for view in state["replicas"] if view["uid"] == pod["metadata"]["uid"]]
    freshest: Mapping[str, Any] = min(views, key=_age_s, default={})
    return Replica(
        pod=pod["metadata"]["name"],
        gpu=_label(pod, names.LABEL_GPU),
        node=pod["spec"].get("nodeName", ""),
        state=_state(pod, nodes, silent=bool(views) and not any(view["healthy"] for view in views)),
        in_flight=sum(int(view["in_flight"]) for view in views) if views else None,
        kv_used_tokens=int(freshest.get("kv_used_tokens", 0)),
        kv_total_tokens=int(freshest.get("kv_total_tokens", 0)),
        conversations=sum(int(view["conversations"]) for view in views),
    )


def _state(pod: Manifest, nodes: frozenset[str], *, silent: bool) -> State:
    metadata = pod["metadata"]
    node = pod["spec"].get("nodeName", "")
    if node and node not in nodes:
        return State.LOST
    if "deletionTimestamp" in metadata:
        return State.ENDING
    if not _condition(pod, "Ready"):
        return State.STARTING
    if silent:
        return State.SILENT
    draining = (metadata.get("annotations") or {}).get(names.ANNOTATION_DRAINING) == "true"
    return State.DRAINING if draining else State.SERVING


def _age_s(view: Mapping[str, Any]) -> float:
    age_s = view.get("last_poll_age_s")
    return float("inf") if age_s is None else float(age_s)


def _label(pod: Manifest, name: str) -> str:
    return str(pod["metadata"].get("labels", {}).get(name, ""))


def _condition(manifest: Manifest, kind: str) -> bool:
    conditions = (manifest.get("status") or {}).get("conditions", ())
    return any(item["type"] == kind and item["status"] == "True" for item in conditions)


def _router_state(pod: Manifest) -> Mapping[str, Any] | None:
    """What a router says of itself; None from a pod that is none, or that does not answer."""
    address = (pod.get("status") or {}).get("podIP")
    if _label(pod, names.LABEL_COMPONENT) != names.COMPONENT_ROUTER or not address:
        return None
    connection = http.client.HTTPConnection(address, STATE_PORT, timeout=ROUTER_LIMIT_S)
    try:
        connection.request("GET", "/state")
        response = connection.getresponse()
        content = response.read()
        state = json.loads(content) if response.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    return state if isinstance(state, dict) and "replicas" in state else None
