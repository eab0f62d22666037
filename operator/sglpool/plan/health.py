"""Which replica of a pool is to be replaced because its engine does badly: one at a time, and not again and again.

A replica is judged beside its peers. What most of them have is no defect of one of them, and is only told; what came
back after a replacement is tried again at growing intervals. Not here: what is wrong with a replica (`plan.verdicts`),
emptying and replacing it within `rollout.maxUnavailable` (`plan.settle`), GPUs that a node lost (`plan.nodes`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median_low

from sglpool.plan.drain import CAUSE_UNHEALTHY, Leave
from sglpool.plan.observed import ObservedPod
from sglpool.plan.verdicts import FRESH_S, Ailment, ReplicaMemory, Sample, Verdict, observe

RETURN_S = 3600.0
"""The replacement of a replica gets so long to become ready before another one is replaced."""
ABSENT_S = 120.0
"""A StatefulSet makes a missing pod anew at once, if it does."""
AGAIN_S = 3600.0
"""A replica is replaced a second time after an hour at the earliest, then after two, and so on."""
LONGEST_AGAIN_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One unhealthy replica.

    Attributes:
        uid: uid of its pod.
        name: Name of its pod.
        verdict: What is wrong with it.
        kept: Why it is not being replaced, empty if it is.
        restarts: Restarts of its containers before the run of the engine that is judged.
    """

    uid: str
    name: str
    verdict: Verdict
    kept: str = ""
    restarts: int = 0

    @property
    def leave(self) -> Leave:
        """What the mark on its pod says; `recall` reads it."""
        return Leave(reason=self.verdict.message, cause=f"{CAUSE_UNHEALTHY}/{self.verdict.ailment}/{self.restarts}")

    @property
    def sentence(self) -> str:
        """What it says to a user."""
        return f"{self.name} is unhealthy: {self.verdict.message}{f'; {self.kept}' if self.kept else ''}."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replaced:
    """How often the replica of a name was replaced, and when it was last."""

    times: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthMemory:
    """What is kept of a pool.

    Attributes:
        replicas: By uid of the pod.
        replaced: By name of the pod.
        acting: uid and name of the one that is being replaced.
        awaited: Name of one that was replaced and is not back yet.
    """

    replicas: Mapping[str, ReplicaMemory] = field(default_factory=dict)
    replaced: Mapping[str, _Replaced] = field(default_factory=dict)
    acting: tuple[str, str] | None = None
    awaited: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What is wrong with a pool's replicas.

    Attributes:
        findings: By name of the pod.
    """

    findings: tuple[Finding, ...] = ()

    @property
    def unhealthy(self) -> dict[str, Leave]:
        """Why a replica is to be replaced, by uid: one at most."""
        return {one.uid: one.leave for one in self.findings if not one.kept}


def recall(pods: Iterable[ObservedPod], now_s: float) -> tuple[Health, HealthMemory]:
    """What a former operator found, as far as a replica is being emptied for it: its mark says what was wrong.

    Args:
        pods: Engine pods of a pool.
        now_s: The time in which samples are dated.
    """
    for pod in sorted(pods, key=lambda pod: pod.name):
        word, _, rest = pod.drain_cause.partition("/")
        ailment, _, restarts = rest.partition("/")
        if word != CAUSE_UNHEALTHY or ailment not in [*Ailment] or not restarts.isdecimal():
            continue
        if pod.terminating or not pod.draining:
            continue
        verdict = Verdict(ailment=Ailment(ailment), message=pod.drain_reason, at_s=now_s)
        finding = Finding(uid=pod.uid, name=pod.name, verdict=verdict, restarts=int(restarts))
        replica = ReplicaMemory(restarts=int(restarts), verdicts=(verdict,))
        return Health(findings=(finding,)), HealthMemory(replicas={pod.uid: replica}, acting=(pod.uid, pod.name))
    return Health(), HealthMemory()


def judge(
    pods: Sequence[ObservedPod],
    samples: Mapping[str, Sample],
    memory: HealthMemory,
    now_s: float,
    *,
    speculative: bool,
) -> tuple[Health, HealthMemory]:
    """Judge a pool's replicas.

    Args:
        pods: Its engine pods.
        samples: What engines said, by uid; what is not there, or not fresh, was not read.
        memory: What the last call left.
        now_s: The time in which samples are dated.
        speculative: Whether its engines draft.
    """
    live = {pod.uid: pod for pod in pods if not pod.terminating}
    fresh = {
        uid: sample
        for uid, sample in samples.items()
        if uid in live and live[uid].ready and 0 <= now_s - sample.at_s <= FRESH_S
    }
    replicas = {uid: memory.replicas[uid] for uid in live if uid in memory.replicas}
    for uid, sample in fresh.items():
        replicas[uid] = observe(
            replicas.get(uid, ReplicaMemory()),
            sample,
            restarts=live[uid].restarts,
            speculative=speculative,
            peers_kv_tokens=_peers_kv_tokens(live[uid], live, fresh),
        )
    memory = _follow_replacement(replace(memory, replicas=replicas), pods, now_s)
    return _choose(memory, live, now_s)


def kv_tokens_of(memory: HealthMemory) -> dict[str, int]:
    """The KV pool that engines said they have in this run, by uid of the pod."""
    return {uid: one.last.kv_total_tokens for uid, one in memory.replicas.items() if one.last is not None}


def _peers_kv_tokens(pod: ObservedPod, live: Mapping[str, ObservedPod], fresh: Mapping[str, Sample]) -> int | None:
    """The KV pool that most others of the same template have at least."""
    others = [
        sample.kv_total_tokens
        for uid, sample in fresh.items()
        if uid != pod.uid and (live[uid].gpu_type, live[uid].revision) == (pod.gpu_type, pod.revision)
    ]
    return median_low(others) if others else None


def _follow_replacement(memory: HealthMemory, pods: Sequence[ObservedPod], now_s: float) -> HealthMemory:
    """See whether the one that is being replaced is gone, and whether its successor is there."""
    live = {pod.uid for pod in pods if not pod.terminating}
    names = {pod.name for pod in pods}
    replaced = {
        name: one for name, one in memory.replaced.items() if name in names or now_s - one.at_s <= LONGEST_AGAIN_S
    }
    acting, awaited = memory.acting, memory.awaited
    if acting is not None and acting[0] not in live:
        before = replaced.get(acting[1])
        awaited = acting[1]
        replaced[awaited] = _Replaced(times=before.times + 1 if before is not None else 1, at_s=now_s)
        acting = None
    if awaited:
        waited_s = now_s - replaced[awaited].at_s if awaited in replaced else RETURN_S
        back = any(pod.name == awaited and pod.ready for pod in pods)
        # One whose ordinal is wanted no more never comes back.
        if back or waited_s >= (RETURN_S if awaited in names else ABSENT_S):
            awaited = ""
    return replace(memory, replaced=replaced, acting=acting, awaited=awaited)


def _choose(memory: HealthMemory, live: Mapping[str, ObservedPod], now_s: float) -> tuple[Health, HealthMemory]:
    """Say what is wrong, and take one replica; the one that was taken stays it while it is unhealthy."""
    ill = {uid: one.verdicts[0] for uid, one in memory.replicas.items() if one.verdicts}
    order = sorted(
        ill, key=lambda uid: (not _is(memory.acting, uid), [*Ailment].index(ill[uid].ailment), live[uid].name)
    )
    findings: list[Finding] = []
    acting: tuple[str, str] | None = None
    for uid in order:
        name, verdict = live[uid].name, ill[uid]
        kept = _alone(uid, verdict, live)
        if not kept and not _is(memory.acting, uid):
            kept = _kept(name, verdict, ill, memory, now_s)
        if not kept and (acting is not None or memory.awaited):
            kept = f"{acting[1] if acting is not None else memory.awaited} is replaced first"
        if not kept:
            acting = (uid, name)
        restarts = memory.replicas[uid].restarts
        findings.append(Finding(uid=uid, name=name, verdict=verdict, kept=kept, restarts=restarts))
    findings.sort(key=lambda one: one.name)
    return Health(findings=tuple(findings)), replace(memory, acting=acting)


def _is(acting: tuple[str, str] | None, uid: str) -> bool:
    return acting is not None and acting[0] == uid


def _alone(uid: str, verdict: Verdict, live: Mapping[str, ObservedPod]) -> str:
    """Why a replica that serves badly is better than none, empty where others serve or it serves nobody."""
    others = (pod for pod in live.values() if pod.uid != uid and pod.ready and pod.unproven != "true")
    return "" if verdict.ailment == Ailment.NO_TOKENS or any(others) else "no other replica serves"


def _kept(name: str, verdict: Verdict, ill: Mapping[str, Verdict], memory: HealthMemory, now_s: float) -> str:
    """Why replacing a replica would not help, empty if it may."""
    if verdict.ailment == Ailment.ACCEPT_LENGTH_COLLAPSED:
        same = sum(one.ailment == verdict.ailment for one in ill.values())
        if same > 1 and same * 2 > len(memory.replicas):
            return "most replicas have the same, so it is the draft model and not this replica"
    before = memory.replaced.get(name)
    if before is not None and now_s - before.at_s < min(AGAIN_S * 2 ** min(before.times - 1, 10), LONGEST_AGAIN_S):
        return "it was replaced for want of health before, so look at its node"
    return ""
