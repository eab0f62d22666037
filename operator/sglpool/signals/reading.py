"""What is asked, and what was answered: plain values.

Not here: asking (`routers`, `engines`, `prometheus`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sglpool.api.names import ENGINE_PORT
from sglpool.routing.pickerconfig import STATE_PORT


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A pod to ask.

    Attributes:
        name: Name of the pod.
        uid: Its uid.
        address: Its IP, empty while it has none.
        since_s: Unix time since which it serves: what is older was said by a former pod of that name.
        required: Whether something is missing when it does not answer.
    """

    name: str
    uid: str
    address: str
    since_s: float = 0.0
    required: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusAt:
    """A Prometheus that scrapes the engines.

    Attributes:
        url: Base URL of its HTTP API.
        secret: Name and key of the Secret with its bearer token, in the pool's namespace; None for none.
        token: That token, once it was read. Never shown.
    """

    url: str
    secret: tuple[str, str] | None = None
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One pool, and whom to ask about it.

    Attributes:
        namespace: Its namespace.
        pool: Its name.
        routed: Whether it has a router. Then the router's counts are the pool's load.
        routers: Router pods that may have requests.
        engines: All engine pods; those are required that are ready.
        prometheus: Where the engines' figures come from instead of the router's polls, None for those.
        router_port: Where a router shows its state.
        engine_port: Where an engine answers.
    """

    namespace: str
    pool: str
    routed: bool
    routers: tuple[Endpoint, ...] = ()
    engines: tuple[Endpoint, ...] = ()
    prometheus: PrometheusAt | None = None
    router_port: int = STATE_PORT
    engine_port: int = ENGINE_PORT


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReading:
    """What is known of one replica.

    Attributes:
        in_flight: Requests on it.
        queued: Those of them that wait inside its engine.
        kv_used_tokens: KV cache in use.
        kv_total_tokens: KV cache.
        conversations: Conversations that live on it, as far as routers know.
        warm_tokens: Tokens that those hold there; counted only while it drains.
        idle: Whether nothing runs, waits or is about to come back, and everybody who should know says so.
        age_s: Age of the engine's own figures.
    """

    in_flight: int
    queued: int
    kv_used_tokens: int
    kv_total_tokens: int
    conversations: int = 0
    warm_tokens: int = 0
    idle: bool = False
    age_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What was found out about a pool at one moment.

    Attributes:
        in_flight: Requests in flight over the pool, of those who answered; None when nobody who counts them did.
        refused_conversations: Conversations that routers refused within the last minute.
        queued: Requests that wait inside engines.
        routers_read: Routers that should answer and did.
        routers_known: Routers that should answer.
        replicas: By uid of the pod, as routers or engines say; one that is not in it is missing.
        measured: The same for decisions about size: from Prometheus where the pool names one.
        problems: What is missing and why, one sentence each. They hold no figure that ticks.
    """

    in_flight: float | None = None
    refused_conversations: int = 0
    queued: int = 0
    routers_read: int = 0
    routers_known: int = 0
    replicas: Mapping[str, ReplicaReading] = field(default_factory=dict)
    measured: Mapping[str, ReplicaReading] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
