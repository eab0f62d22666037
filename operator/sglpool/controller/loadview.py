"""From pods and readings to what the autoscaler, the planner and the status ask for. No I/O and no clock.

Not here: when to read (`autoscaler`), reading (`signals`), deciding (`scaling`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sglpool.api import names
from sglpool.api.pool import Pool
from sglpool.plan import Observed, ObservedPod
from sglpool.plan.autoscaling import Load, kv_percent, policy_of
from sglpool.plan.drain import ReplicaLoad, kept_replicas
from sglpool.render import has_router
from sglpool.scaling import Policy, ReplicaSample, Signals, StartingReplica, TypeState
from sglpool.signals import Endpoint, PrometheusAt, Reading, Target
from sglpool.sizing.pools import SizedGPU

FIRST_POLL_S = 10.0
"""A replica that became ready less than this ago and was not read yet has not been polled yet: it still starts."""
ROUTER_PATIENCE_S = 600.0
"""A router that has been unready for so long has no requests that anybody could wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is kept of a pool between two ticks; the pool itself would be ten times as much.

    Attributes:
        namespace: Its namespace.
        name: Its name.
        uid: Its uid: a new pool of an old name starts anew.
        routed: Whether it has a router.
        policy: What the autoscaler follows, None for a pool of fixed size.
        prometheus: Where the engines' figures come from, None for routers or engines.
    """

    namespace: str
    name: str
    uid: str
    routed: bool
    policy: Policy | None
    prometheus: PrometheusAt | None

    @classmethod
    def of(cls, pool: Pool, sized: tuple[SizedGPU, ...]) -> "Subject":
        """The subject of a pool as it is now."""
        return cls(
            namespace=pool.namespace,
            name=pool.name,
            uid=pool.uid,
            routed=has_router(pool),
            policy=policy_of(pool, sized),
            prometheus=_prometheus_at(pool),
        )


def _prometheus_at(pool: Pool) -> PrometheusAt | None:
    metrics = pool.spec.autoscaling.metrics if pool.spec.autoscaling is not None else None
    if metrics is None or metrics.prometheus is None:
        return None
    secret = metrics.prometheus.token_secret
    return PrometheusAt(url=metrics.prometheus.url, secret=(secret.name, secret.key) if secret is not None else None)


def engines_of(observed: Observed) -> tuple[Endpoint, ...]:
    """A pool's engine pods, as somebody to ask."""
    return tuple(_engine(pod) for pod in observed.pods)


def target_of(subject: Subject, observed: Observed, engines: tuple[Endpoint, ...], *, now_s: float) -> Target:
    """Whom to ask about a pool."""
    return Target(
        namespace=subject.namespace,
        pool=subject.name,
        routed=subject.routed,
        routers=tuple(_router(pod, now_s) for pod in observed.router_pods if _is_router(pod)),
        engines=engines,
        prometheus=subject.prometheus,
    )


def _is_router(pod: ObservedPod) -> bool:
    return pod.component == names.COMPONENT_ROUTER and bool(pod.address)


def _router(pod: ObservedPod, now_s: float) -> Endpoint:
    """A router that is unready may have streams that its probe knows nothing of; after a while it has none."""
    serves = pod.ready or pod.terminating or now_s - pod.unready_since_s < ROUTER_PATIENCE_S
    return Endpoint(name=pod.name, uid=pod.uid, address=pod.address, required=serves)


def _engine(pod: ObservedPod) -> Endpoint:
    return Endpoint(name=pod.name, uid=pod.uid, address=pod.address, since_s=pod.unready_since_s, required=pod.ready)


def signals_of(
    subject: Subject,
    observed: Observed,
    reading: Reading,
    *,
    now_s: float,
    waited_s: float,
    scaled: Callable[[float], float],
) -> Signals:
    """What `decide` is asked.

    Args:
        subject: The pool.
        observed: Its objects as they were when it was read.
        reading: The reading.
        now_s: Unix time.
        waited_s: Time since the reading.
        scaled: From Unix time to the time that the autoscaler lives in.
    """
    policy = subject.policy
    uids = {s.uid for s in observed.statefulsets if s.owner_uid == subject.uid}
    pods = [pod for pod in observed.pods if pod.owner_uid in uids]
    sizes = {
        s.gpu_type: kept_replicas(s.replicas, (pod for pod in pods if pod.owner_uid == s.uid))
        for s in observed.statefulsets
        if s.uid in uids
    }
    serving = frozenset(pod.uid for pod in pods if _serves(pod, reading, now_s))
    return Signals(
        in_flight=reading.in_flight if subject.routed else None,
        types=tuple(_type_state(one.type, sizes, pods, serving, scaled) for one in policy.types)
        if policy is not None
        else (),
        replicas=tuple(_sample(pod, reading, waited_s) for pod in pods if pod.uid in serving),
        has_router=subject.routed,
        refused_conversations=reading.refused_conversations,
        queued=sum(one.queued for pod in pods if pod.uid in serving and (one := reading.measured.get(pod.uid))),
        routers_read=reading.routers_read,
        routers_known=reading.routers_known,
        age_s=waited_s,
    )


def _serves(pod: ObservedPod, reading: Reading, now_s: float) -> bool:
    """Whether it carries load: one whose revision has not passed its gate gets no traffic, whatever it could carry."""
    if not pod.ready or pod.unproven == "true":
        return False
    return pod.uid in reading.measured or not 0 <= now_s - pod.unready_since_s < FIRST_POLL_S


def _type_state(
    gpu_type: str,
    sizes: Mapping[str, int],
    pods: Iterable[ObservedPod],
    serving: frozenset[str],
    scaled: Callable[[float], float],
) -> TypeState:
    mine = [pod for pod in pods if pod.gpu_type == gpu_type]
    starting = tuple(
        StartingReplica(
            uid=pod.uid,
            ordinal=pod.ordinal,
            since_s=scaled(pod.unready_since_s),
            unschedulable_since_s=scaled(pod.unready_since_s) if pod.unschedulable and not pod.node else None,
            ready=pod.ready,
        )
        for pod in mine
        if not (pod.uid in serving or pod.terminating)
    )
    return TypeState(
        type=gpu_type,
        replicas=sizes.get(gpu_type, 0),
        ready=sum(pod.uid in serving for pod in mine),
        starting=starting,
    )


def _sample(pod: ObservedPod, reading: Reading, waited_s: float) -> ReplicaSample:
    one = reading.measured.get(pod.uid)
    if one is None:
        return ReplicaSample(uid=pod.uid, gpu_type=pod.gpu_type)
    return ReplicaSample(
        uid=pod.uid,
        gpu_type=pod.gpu_type,
        running=float(one.in_flight),
        kv_used_tokens=float(one.kv_used_tokens),
        kv_total_tokens=float(one.kv_total_tokens),
        age_s=one.age_s + waited_s,
    )


def load_of(subject: Subject, observed: Observed, reading: Reading) -> Load:
    """Load as status shows it."""
    ready = [one for pod in observed.pods if pod.ready and (one := reading.measured.get(pod.uid)) is not None]
    if subject.routed:
        # The sum over some routers is not the pool's load.
        in_flight = reading.in_flight if reading.routers_read == reading.routers_known else None
    else:
        in_flight = sum(one.in_flight for one in ready) if ready else None
    return Load(
        running_requests=None if in_flight is None else round(in_flight),
        kv_utilization_percent=kv_percent(
            sum(one.kv_used_tokens for one in ready), sum(one.kv_total_tokens for one in ready)
        ),
    )


def missing_of(observed: Observed, reading: Reading) -> int:
    """Ready replicas and routers that were not read."""
    unread = sum(pod.ready and pod.uid not in reading.measured for pod in observed.pods)
    return unread + reading.routers_known - reading.routers_read


def loads_of(reading: Reading, idle_reads: Mapping[str, int], *, waited_s: float) -> dict[str, ReplicaLoad]:
    """What the planner looks at before it takes a replica away."""
    return {
        uid: ReplicaLoad(
            uid=uid,
            idle_reads=idle_reads.get(uid, 0),
            in_flight=one.in_flight,
            conversations=one.conversations,
            warm_tokens=one.warm_tokens,
            age_s=one.age_s + waited_s,
        )
        for uid, one in reading.replicas.items()
    }
