"""What a user is told in every situation, and that it is told once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglpool import render
from sglpool.api import names
from sglpool.api.conditions import ABNORMAL, TABLE
from sglpool.api.pool import Pool
from sglpool.api.status import PENDING_STATUS, InferencePoolStatus
from sglpool.plan import Observed, ObservedPod, ObservedStatefulSet, Refusal, make_plan
from sglpool.plan.problems import DEADLINE_SLACK_S, deadline_s
from sglpool.plan.status import Blocker, make_status
from sglpool.plan.surroundings import ObservedJob, ObservedNode
from sglpool.render import gate_job_name
from support import pools
from support.kstatus import kstatus
from support.observed import observed_pod, observed_statefulset

Json = dict[str, Any]

GPU_FULL = (
    "0/7 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 6 Insufficient nvidia.com/gpu. "
    "preemption: 0/7 nodes are available: 1 Preemption is not helpful for scheduling, 6 No preemption victims found "
    "for incoming pod."
)
NO_MATCH = (
    "0/7 nodes are available: 7 node(s) didn't match Pod's node affinity/selector. preemption: 0/7 nodes are "
    "available: 7 Preemption is not helpful for scheduling."
)
TAINTED = (
    "0/7 nodes are available: 3 node(s) didn't match Pod's node affinity/selector, 4 node(s) had untolerated taint "
    "{example.com/team: training}."
)
MEMORY_FULL = "0/7 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 6 Insufficient memory."
CPU_BESIDE_A_GPU_TAINT = (
    "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint {nvidia.com/gpu: present}."
)
NO_NODES = "no nodes available to schedule pods"
CORDONED = "0/2 nodes are available: 2 node(s) were unschedulable."
UNBOUND = "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims."

PENDING = {"ready": False, "node": ""}
STARTED_S = 1_000_000.0
NOW_S = STARTED_S + 60


def on(gpu_type: str, *pods: ObservedPod) -> tuple[ObservedPod, ...]:
    return tuple(replace(p, gpu_type=gpu_type, owner_uid=f"sts-{gpu_type}", unready_since_s=STARTED_S) for p in pods)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A situation, and the reasons that it must show. Types with both lists of pods run on B200 unless they say so."""

    expect: dict[str, str]
    kstatus: str
    spec: Json = field(default_factory=dict)
    pods: Sequence[ObservedPod] = ()
    statefulsets: Json = field(default_factory=dict)
    refusals: dict[str, Refusal] = field(default_factory=dict)
    rollout: str = ""
    test: str = ""
    nodes: dict[str, ObservedNode] | None = field(default_factory=dict)
    blockers: Sequence[Blocker] = ()
    status: Json = field(default_factory=dict)
    now_s: float = NOW_S
    words: Sequence[str] = ()
    kv_tokens: dict[str, int] = field(default_factory=dict)

    def pool(self) -> Pool:
        spec = {"gpus": [{"type": "B200"}], **self.spec}
        said = {names.ANNOTATION_ROLLOUT: self.rollout} if self.rollout else {}
        pool = pools.pool(spec, metadata={"uid": "pool", "generation": 4, "annotations": said})
        return replace(pool, status=self.status)

    def jobs(self) -> tuple[ObservedJob, ...]:
        """The Job of the gate, in the state that the case names."""
        pool = self.pool()
        if not self.test or pool.spec.rollout.gate is None:
            return ()
        name = gate_job_name(pool, pool.spec.rollout.gate, "new")
        message = "BackoffLimitExceeded" if self.test == "Failed" else ""
        return (
            ObservedJob(
                name=name, uid="j", owner_uid="pool", state=self.test, message=message, pod_uid="pod-B200-1", word=""
            ),
        )

    def observed(self) -> Observed:
        good = pools.pool({"gpus": [{"type": "B200"}, {"type": "B300"}]}, metadata={"uid": "pool"})
        good_sized = pools.size(good)
        pool, sized = self.pool(), pools.size(self.pool())
        found: list[ObservedStatefulSet] = []
        for gpu_type, changes in ({"B200": {}} | self.statefulsets).items():
            if changes is None:
                continue
            feasible = all(s.feasible for s in sized)
            source = (pool, sized) if feasible else (good, good_sized)
            one = next((s for s in source[1] if s.entry.type == gpu_type), good_sized[0])
            manifest = render.statefulset(source[0], one)
            count = sum(p.gpu_type == gpu_type and not p.terminating for p in self.pods)
            fields = {"replicas": pool.spec.replicas if len(sized) == 1 else count, **changes}
            found.append(
                observed_statefulset(
                    name=names.statefulset_name(pool.name, gpu_type),
                    uid=f"sts-{gpu_type}",
                    gpu_type=gpu_type,
                    spec_hash=fields.pop("spec_hash", manifest["metadata"]["annotations"][names.ANNOTATION_SPEC_HASH]),
                    **fields,
                )
            )
        return Observed(
            statefulsets=tuple(found),
            pods=tuple(self.pods),
            refusals=self.refusals,
            jobs=self.jobs(),
            nodes=self.nodes,
        )

    def make(self, *, status: Json | None = None, now_s: float | None = None) -> Json:
        pool = self.pool() if status is None else replace(self.pool(), status=status)
        sized, observed = pools.size(pool), self.observed()
        desired = make_plan(pool, sized, observed).desired
        return make_status(
            pool,
            sized,
            observed,
            desired=desired,
            blockers=self.blockers,
            now_s=self.now_s if now_s is None else now_s,
            kv_tokens=self.kv_tokens,
        )

    def capacity(self) -> Json:
        """What the status says that a B200 replica holds."""
        found: Json = self.make()["gpus"][0]["capacity"]
        return found


def pod(ordinal: int, **changes: Any) -> ObservedPod:
    return on("B200", observed_pod(ordinal, **changes))[0]


def waiting(reason: str, **changes: Any) -> ObservedPod:
    return pod(1, ready=False, waiting=(reason, "example/engine:9"), **changes)


def pending(words: str) -> ObservedPod:
    return pod(1, unschedulable=words, **PENDING)


READY = pod(0), pod(1)
REACHED = {
    "observedGeneration": 4,
    "conditions": [
        {"type": t, "status": "True", "reason": "X", "lastTransitionTime": "2001-01-01T00:00:00Z"}
        for t in ("Ready", "Scheduled")
    ],
}
GATED: Json = {"rollout": {"gate": {"image": "example/gate:1"}}}
UNDER_GATE: Json = {"partition": 1, "current": "old", "proven": "old", "gated": "new"}
INFEASIBLE = {"kvCache": {"hiCache": {"size": "9000G"}}}
CONFLICT = Blocker("NameConflict", "Service kimi-engine exists already and has no owner.")

CASES = {
    "seen for the first time": Case(
        statefulsets={"B200": None},
        status=PENDING_STATUS,
        expect={
            "Ready": "ReplicasStarting",
            "Available": "NoReplicaAvailable",
            "Progressing": "ReplicasStarting",
            "Reconciling": "ReplicasStarting",
            "Feasible": "FitsHBM",
            "Scheduled": "AllPodsScheduled",
            "ScalingActive": "Disabled",
        },
        kstatus="InProgress",
    ),
    "one of two is up": Case(
        pods=[pod(0), pod(1, ready=False)],
        expect={
            "Ready": "ReplicasStarting",
            "Available": "MinimumReplicasAvailable",
            "Reconciling": "ReplicasStarting",
        },
        words=["1 of 2 replicas are ready"],
        kstatus="InProgress",
    ),
    "ready": Case(
        pods=READY,
        expect={"Ready": "AllReplicasReady", "Progressing": "Complete", "Scheduled": "AllPodsScheduled"},
        kstatus="Current",
    ),
    "a replica restarts long after": Case(
        pods=[pod(0), pod(1, ready=False)],
        status=REACHED,
        expect={"Ready": "ReplicasStarting", "Progressing": "ReplicasStarting", "Reconciling": ""},
        kstatus="InProgress",
    ),
    "parked": Case(
        spec={"replicas": 0},
        expect={"Ready": "Parked", "Available": "Parked", "Progressing": "Complete"},
        kstatus="Current",
    ),
    "rolling out": Case(
        pods=[pod(0, revision="old"), pod(1, ready=False)],
        statefulsets={"B200": {"partition": 1, "current": "old"}},
        status=REACHED,
        expect={"Ready": "RollingOut", "Progressing": "RollingOut", "Reconciling": "RollingOut"},
        kstatus="InProgress",
    ),
    "the template is not applied yet": Case(
        pods=READY,
        statefulsets={"B200": {"spec_hash": "former"}},
        status=REACHED,
        expect={"Ready": "RollingOut", "Reconciling": "RollingOut"},
        kstatus="InProgress",
    ),
    "a node is lost": Case(
        pods=[pod(0), pod(1, ready=False, node="away")],
        nodes={"away": ObservedNode(name="away", ready=False, since_s=0.0)},
        expect={"Ready": "NodeLost", "Progressing": "NodeLost", "Available": "MinimumReplicasAvailable"},
        words=["kimi-b200-1: node away is not ready"],
        kstatus="InProgress",
    ),
    "nodes can be read": Case(pods=READY, expect={"Ready": "AllReplicasReady", "NodesReady": ""}, kstatus="Current"),
    "nodes cannot be read": Case(
        pods=READY,
        nodes=None,
        expect={"Ready": "AllReplicasReady", "NodesReady": "NodesUnreadable"},
        words=["cannot list and watch nodes", "rbac.nodes"],
        kstatus="Current",
    ),
    "image cannot be pulled": Case(
        pods=[pod(0), waiting("ErrImagePull")],
        expect={"Ready": "ImagePullFailed", "Progressing": "ImagePullFailed", "Available": "MinimumReplicasAvailable"},
        words=["kimi-b200-1: image example/engine:9 cannot be pulled", "engine.image"],
        kstatus="InProgress",
    ),
    "image backs off": Case(
        pods=[pod(0), waiting("ImagePullBackOff")],
        expect={"Ready": "ImagePullFailed", "Progressing": "ImagePullFailed"},
        kstatus="InProgress",
    ),
    "a Secret is missing": Case(
        pods=[pod(0), pod(1, ready=False, waiting=("CreateContainerConfigError", 'secret "hf" not found'))],
        expect={"Ready": "ContainerConfigError", "Progressing": "ContainerConfigError"},
        words=['kimi-b200-1: its container cannot be made: secret "hf" not found'],
        kstatus="InProgress",
    ),
    "crash loop": Case(
        pods=[pod(0), waiting("CrashLoopBackOff", restarts=1, last_exit=3)],
        expect={"Ready": "CrashLoop", "Progressing": "CrashLoop"},
        words=["with exit code 3", "kubectl logs kimi-b200-1 --previous"],
        kstatus="InProgress",
    ),
    "crash loop with a reason": Case(
        pods=[pod(0), waiting("CrashLoopBackOff", restarts=1, last_exit=2, last_words="error: invalid choice: 'x'")],
        expect={"Ready": "CrashLoop"},
        words=["again and again: \"error: invalid choice: 'x'\". Read"],
        kstatus="InProgress",
    ),
    "crash loop between two crashes": Case(
        pods=[pod(0), pod(1, ready=False, restarts=3)],
        expect={"Ready": "CrashLoop"},
        kstatus="InProgress",
    ),
    "killed for memory": Case(
        pods=[pod(0), waiting("CrashLoopBackOff", restarts=4, last_exit=137, oom_killed=True)],
        expect={"Ready": "CrashLoop"},
        words=["killed for memory", "hiCache.size"],
        kstatus="InProgress",
    ),
    "two are in trouble": Case(
        pods=[replace(waiting("ErrImagePull"), ordinal=0, name="kimi-b200-0"), waiting("ErrImagePull")],
        expect={"Ready": "ImagePullFailed", "Available": "NoReplicaAvailable"},
        words=["kimi-b200-0: ", "(and 1 more)"],
        kstatus="InProgress",
    ),
    "not ready by the deadline": Case(
        pods=[pod(0), pod(1, ready=False)],
        now_s=STARTED_S + 3600 + DEADLINE_SLACK_S,
        expect={"Ready": "ProgressDeadlineExceeded", "Progressing": "ProgressDeadlineExceeded"},
        words=["engine.startupTimeout (1h)"],
        kstatus="InProgress",
    ),
    "no GPU is free": Case(
        pods=[pod(0), pending(GPU_FULL)],
        expect={"Ready": "InsufficientGPU", "Scheduled": "InsufficientGPU", "Progressing": "Unschedulable"},
        words=["needs 4 free GPUs on one B200 node", "lower the pool's replicas"],
        kstatus="InProgress",
    ),
    "no memory is free": Case(
        pods=[pod(0), pending(MEMORY_FULL)],
        expect={"Ready": "InsufficientMemory", "Scheduled": "InsufficientMemory"},
        words=["kvCache.hiCache.size"],
        kstatus="InProgress",
    ),
    "no CPU is free, beside a taint that names GPUs": Case(
        pods=[pod(0), pending(CPU_BESIDE_A_GPU_TAINT)],
        expect={"Scheduled": "InsufficientMemory"},
        kstatus="InProgress",
    ),
    "no such node": Case(
        pods=[pod(0), pending(NO_MATCH)],
        expect={"Ready": "NoMatchingNodes", "Scheduled": "NoMatchingNodes", "Progressing": "Unschedulable"},
        words=["B200", "nvidia.com/gpu.product"],
        kstatus="InProgress",
    ),
    "tainted nodes": Case(
        pods=[pod(0), pending(TAINTED)],
        expect={"Scheduled": "NoMatchingNodes"},
        words=["template.tolerations"],
        kstatus="InProgress",
    ),
    "cordoned nodes": Case(
        pods=[pod(0), pending(CORDONED)],
        expect={"Scheduled": "NoMatchingNodes"},
        words=["cordoned"],
        kstatus="InProgress",
    ),
    "no nodes at all": Case(
        pods=[pod(0), pending(NO_NODES)], expect={"Scheduled": "NoMatchingNodes"}, kstatus="InProgress"
    ),
    "another reason of the scheduler": Case(
        pods=[pod(0), pending(UNBOUND)],
        expect={"Ready": "Unschedulable", "Scheduled": "Unschedulable"},
        words=["unbound immediate PersistentVolumeClaims"],
        kstatus="InProgress",
    ),
    "does not fit, old replicas run": Case(
        spec=INFEASIBLE,
        pods=READY,
        expect={
            "Ready": "Infeasible",
            "Available": "MinimumReplicasAvailable",
            "Feasible": "HostMemoryExceeded",
            "Progressing": "Blocked",
            "Stalled": "Infeasible",
            "Reconciling": "",
        },
        kstatus="Failed",
    ),
    "does not fit, nothing ever ran": Case(
        spec=INFEASIBLE,
        statefulsets={"B200": None},
        expect={"Ready": "Infeasible", "Available": "NoReplicaAvailable", "Stalled": "Infeasible"},
        kstatus="Failed",
    ),
    "unknown profile": Case(
        spec={"model": {"profile": "nonesuch"}},
        pods=READY,
        expect={"Stalled": "UnknownProfile", "Feasible": "UnknownProfile", "Available": "MinimumReplicasAvailable"},
        words=["spec.model.profile", "nonesuch"],
        kstatus="Failed",
    ),
    "unknown GPU type": Case(
        spec={"gpus": [{"type": "X999"}, {"type": "B200"}]},
        pods=READY,
        expect={"Stalled": "UnknownGPUType", "Feasible": "UnknownGPUType", "Available": "MinimumReplicasAvailable"},
        words=["spec.gpus[0].type", "X999"],
        kstatus="Failed",
    ),
    "name conflict": Case(
        pods=READY,
        blockers=[CONFLICT],
        expect={"Ready": "NameConflict", "Stalled": "NameConflict", "Progressing": "Blocked"},
        words=[CONFLICT.message],
        kstatus="Failed",
    ),
    "Pod Security refuses": Case(
        refusals={
            "kimi-b200": Refusal.from_message('pods "kimi-b200-0" is forbidden: violates PodSecurity "baseline"')
        },
        expect={"Ready": "PodSecurityRefused", "Stalled": "PodSecurityRefused", "Available": "NoReplicaAvailable"},
        words=["StatefulSet kimi-b200", 'violates PodSecurity "baseline"'],
        kstatus="Failed",
    ),
    "quota refuses": Case(
        pods=[pod(0)],
        refusals={"kimi-b200": Refusal.from_message("exceeded quota: gpus, requested: 4, limited: 4")},
        expect={"Stalled": "QuotaExceeded", "Available": "MinimumReplicasAvailable"},
        kstatus="Failed",
    ),
    "another refusal": Case(
        refusals={"kimi-b200": Refusal.from_message("admission webhook said no")},
        expect={"Stalled": "PodsRefused"},
        words=["admission webhook said no"],
        kstatus="Failed",
    ),
    "scaling down": Case(
        spec={"replicas": 1},
        pods=[pod(0), pod(1)],
        expect={"Ready": "AllReplicasReady", "Progressing": "ScalingDown", "Reconciling": "ScalingDown"},
        words=["1 of 1 replicas are ready"],
        kstatus="InProgress",
    ),
    "scaling down, the last one drains": Case(
        spec={"replicas": 1},
        pods=[pod(0), pod(1, ready=False, terminating=True)],
        status=REACHED,
        expect={"Ready": "AllReplicasReady", "Progressing": "ScalingDown", "Reconciling": ""},
        kstatus="Current",
    ),
    "parking while one still serves": Case(
        spec={"replicas": 0},
        pods=[pod(0)],
        expect={"Ready": "Parked", "Available": "MinimumReplicasAvailable", "Progressing": "ScalingDown"},
        kstatus="InProgress",
    ),
    "a surplus of one type is no replica of another": Case(
        spec={"gpus": [{"type": "B200", "maxReplicas": 1}, {"type": "B300"}]},
        pods=[*READY, *on("B300", observed_pod(0, gpu_type="B300", ready=False))],
        statefulsets={"B300": {}},
        expect={"Ready": "ReplicasStarting"},
        words=["1 of 2 replicas are ready"],
        kstatus="InProgress",
    ),
    "autoscaled, without figures": Case(
        spec={"replicas": None, "autoscaling": {"maxReplicas": 4}},
        statefulsets={"B200": {"replicas": 2}},
        pods=READY,
        expect={"Ready": "AllReplicasReady", "ScalingActive": "Pending"},
        kstatus="Current",
    ),
    "the gate runs": Case(
        spec=GATED,
        pods=[pod(0, revision="old"), pod(1, unproven="true", address="10.0.0.1")],
        statefulsets={"B200": UNDER_GATE},
        test="Running",
        status=REACHED,
        expect={
            "Ready": "GateRunning",
            "Available": "MinimumReplicasAvailable",
            "Progressing": "GateRunning",
            "Reconciling": "GateRunning",
            "Stalled": "",
        },
        words=["kimi-b200: new gets no traffic before it passes rollout.gate"],
        kstatus="InProgress",
    ),
    "the gate failed": Case(
        spec=GATED,
        pods=[pod(0, revision="old"), pod(1, revision="old")],
        statefulsets={"B200": UNDER_GATE},
        test="Failed",
        expect={
            "Ready": "GateFailed",
            "Available": "MinimumReplicasAvailable",
            "Progressing": "Blocked",
            "Reconciling": "",
            "Stalled": "GateFailed",
        },
        words=["new failed rollout.gate (BackoffLimitExceeded); its replica returns to old", "kubectl logs job/"],
        kstatus="Failed",
    ),
    "paused": Case(
        rollout="pause",
        pods=[pod(0, revision="old"), pod(1)],
        statefulsets={"B200": {"partition": 1, "current": "old"}},
        expect={"Ready": "RolloutPaused", "Progressing": "RolloutPaused", "Reconciling": "", "Stalled": ""},
        words=["paused. Set sglpool.io/rollout to resume"],
        kstatus="InProgress",
    ),
    "paused, and nothing to roll out": Case(
        rollout="pause", pods=READY, expect={"Ready": "AllReplicasReady", "Progressing": "Complete"}, kstatus="Current"
    ),
    "aborted": Case(
        rollout="abort",
        pods=[pod(0, revision="old"), pod(1, revision="old")],
        statefulsets={"B200": {"partition": 2, "current": "old"}},
        expect={"Ready": "RolloutAborted", "Progressing": "RolloutAborted", "Stalled": ""},
        words=["replicas run old"],
        kstatus="InProgress",
    ),
    "a word that means nothing": Case(
        rollout="halt",
        pods=READY,
        expect={"Ready": "RolloutUnknownWord", "Stalled": "RolloutUnknownWord"},
        words=["'halt'", "pause, resume or abort"],
        kstatus="Failed",
    ),
    "somebody else's pods": Case(
        pods=[replace(pod(0), owner_uid="other"), pod(1)],
        expect={"Ready": "ReplicasStarting"},
        words=["1 of 2 replicas are ready"],
        kstatus="InProgress",
    ),
}


def conditions(status: Json) -> dict[str, Json]:
    return {c["type"]: c for c in status["conditions"]}


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


def test_reasons(case):
    found = {t: c["reason"] for t, c in conditions(case.make()).items()}
    for kind, reason in case.expect.items():
        assert found.get(kind, "") == reason, kind


def test_words(case):
    everything = "\n".join(c["message"] for c in case.make()["conditions"])
    for words in case.words:
        assert words in everything


def test_what_tools_that_wait_make_of_it(case):
    pool = {"metadata": {"generation": 4}, "status": case.make()}
    assert kstatus(pool) == case.kstatus


def check_status(status: Json) -> None:
    """What holds of every status."""
    InferencePoolStatus.model_validate(status)
    assert status["observedGeneration"] == 4
    for condition in status["conditions"]:
        row = TABLE[condition["type"]][condition["reason"]]
        assert condition["status"] == row.status
        assert condition["observedGeneration"] == 4
        assert condition["message"].strip()
        assert condition["type"] not in ABNORMAL or condition["status"] == "True"
    kinds = [c["type"] for c in status["conditions"]]
    assert len(set(kinds)) == len(kinds)
    assert {"Ready", "Available", "Progressing", "Scheduled", "Feasible", "ScalingActive"} <= set(kinds)
    assert re.fullmatch(r"\d+/\d+", status["summary"]["ready"])


def test_every_status_is_of_the_closed_table(case):
    check_status(case.make())


def test_the_same_facts_give_the_same_status_to_the_letter(case):
    first = case.make()
    assert case.make(status=first) == first
    due = deadline_s(case.pool(), case.pods, now_s=case.now_s)
    for later_s in (1, 7, 3_000):
        if due is None or later_s < due:
            assert case.make(status=first, now_s=case.now_s + later_s) == first


def test_nothing_seen_yet_is_in_progress_for_tools_that_wait():
    assert kstatus({"metadata": {"generation": 1}, "status": PENDING_STATUS}) == "InProgress"
    assert kstatus({"metadata": {"generation": 2}, "status": {"observedGeneration": 1}}) == "InProgress"
    assert kstatus({"metadata": {"generation": 1, "deletionTimestamp": "x"}, "status": PENDING_STATUS}) == "Terminating"


def test_a_transition_time_moves_only_with_the_status():
    first = CASES["one of two is up"].make(now_s=NOW_S)
    same = CASES["rolling out"].make(status=first, now_s=NOW_S + 50)
    assert conditions(same)["Ready"]["lastTransitionTime"] == conditions(first)["Ready"]["lastTransitionTime"]
    flipped = CASES["ready"].make(status=same, now_s=NOW_S + 60)
    assert conditions(flipped)["Ready"]["lastTransitionTime"] != conditions(first)["Ready"]["lastTransitionTime"]
    assert conditions(flipped)["Feasible"]["lastTransitionTime"] == conditions(first)["Feasible"]["lastTransitionTime"]


def test_the_deadline_is_known_before_it_passes():
    case = CASES["one of two is up"]
    due = deadline_s(case.pool(), case.pods, now_s=NOW_S)
    assert due is not None
    just_before, at = case.make(now_s=NOW_S + due - 1), case.make(now_s=NOW_S + due)
    assert conditions(just_before)["Ready"]["reason"] == "ReplicasStarting"
    assert conditions(at)["Ready"]["reason"] == "ProgressDeadlineExceeded"
    assert deadline_s(case.pool(), READY, now_s=NOW_S) is None


def test_figures_by_type():
    status = CASES["a surplus of one type is no replica of another"].make()
    b200, b300 = status["gpus"]
    assert {k: v for k, v in b200.items() if k != "capacity"} == {
        "type": "B200",
        "desired": 1,
        "replicas": 2,
        "ready": 2,
        "updated": 2,
    }
    assert (b300["desired"], b300["replicas"], b300["ready"]) == (1, 1, 0)
    assert b200["capacity"]["kvTokens"] > 0
    assert (status["replicas"], status["readyReplicas"]) == (3, 2)
    assert status["summary"] == {"ready": "1/2", "gpus": "8 B200 + 4 B300"}
    assert status["endpoint"] == "http://kimi-engine.serving.svc:30000/v1"
    assert status["selector"] == names.pool_selector("kimi")


SAID: Json = {"kv_tokens": {"pod-B200-0": 600_064, "pod-B200-1": 600_000}}
"""What the engines of READY say."""


def test_what_a_replica_holds_is_an_estimate_until_one_says_it():
    ready = CASES["ready"]
    estimate = ready.capacity()
    assert estimate["source"] == "Estimate"
    said = replace(ready, **SAID).capacity()
    # Of two the lower one; what no engine says stays as it was.
    assert said == estimate | {"kvTokens": 600_000, "conversationsAtContext": 2, "source": "Engine"}
    assert replace(ready, kv_tokens={"somebody-else": 7}).capacity() == estimate


def test_replicas_that_are_not_ready_or_of_a_former_revision_say_nothing_of_this_one():
    estimate = CASES["ready"].capacity()
    unready = replace(CASES["ready"], pods=(pod(0, ready=False), pod(1, ready=False)), **SAID)
    assert unready.capacity() == estimate
    former = replace(CASES["ready"], pods=(pod(0, revision="old"), pod(1, revision="old")), **SAID)
    assert former.capacity() == estimate
    half = replace(former, pods=(pod(0, revision="old"), pod(1)))
    assert half.capacity()["kvTokens"] == 600_000
    # The template is not written yet, so whatever runs is of a former one.
    outdated = replace(CASES["ready"], statefulsets={"B200": {"spec_hash": "former"}}, **SAID)
    assert outdated.capacity() == estimate


def test_what_was_said_to_a_former_operator_is_kept_until_its_successor_has_asked():
    ready = CASES["ready"]
    said = replace(ready, **SAID).make()
    kept = replace(ready, status=said)
    assert kept.capacity() == said["gpus"][0]["capacity"]
    assert replace(kept, kv_tokens={"pod-B200-0": 500_000}).capacity()["kvTokens"] == 500_000
    for changes in (
        {"status": said | {"observedGeneration": 3}},
        {"pods": (pod(0, ready=False), pod(1, ready=False))},
        {"pods": (pod(0, revision="old"), pod(1, revision="old"))},
    ):
        assert replace(kept, **changes).capacity()["source"] == "Estimate", changes


POD_STATES = st.sampled_from(
    [
        {},
        {"ready": False},
        {"ready": False, "terminating": True},
        {"ready": False, "waiting": ("ErrImagePull", "i")},
        {"ready": False, "waiting": ("CrashLoopBackOff", "i"), "last_exit": 1},
        {"ready": False, "waiting": ("CreateContainerConfigError", "i")},
        {"ready": False, "restarts": 9, "oom_killed": True},
        {"unschedulable": GPU_FULL, **PENDING},
        {"unschedulable": NO_MATCH, **PENDING},
        {"unschedulable": "", **PENDING},
    ]
)


@st.composite
def situations(draw: st.DrawFn) -> Case:
    replicas = draw(st.integers(0, 4))
    spec: Json = {"replicas": replicas}
    if draw(st.booleans()):
        spec["gpus"] = [{"type": draw(st.sampled_from(["B200", "X999"]))}, {"type": "B300"}]
    spec |= draw(st.sampled_from([{}, INFEASIBLE, {"model": {"profile": "nonesuch"}}]))
    states = draw(st.lists(st.tuples(POD_STATES, st.sampled_from(["old", "new"])), max_size=4))
    b300 = draw(st.lists(POD_STATES, max_size=2))
    refusal = Refusal.from_message(draw(st.sampled_from(["exceeded quota", "violates PodSecurity", "no"])))
    return Case(
        expect={},
        kstatus="",
        spec=spec,
        pods=[
            *(pod(i, revision=revision, **state) for i, (state, revision) in enumerate(states)),
            *on("B300", *(observed_pod(i, gpu_type="B300", **state) for i, state in enumerate(b300))),
        ],
        statefulsets={
            "B200": draw(st.sampled_from([None, {}, {"partition": 1}, {"spec_hash": "former"}, {"caught_up": False}])),
            "B300": draw(st.sampled_from([None, {}])),
        },
        refusals=draw(st.sampled_from([{}, {}, {"kimi-b200": refusal}])),
        blockers=draw(
            st.sampled_from([(), (), (CONFLICT,), (Blocker("Forbidden", "no"), Blocker("InvalidSpec", "no"))])
        ),
        status=draw(st.sampled_from([{}, PENDING_STATUS, REACHED])),
        now_s=NOW_S + draw(st.sampled_from([0, 10_000])),
    )


@settings(max_examples=150, deadline=None)
@given(situations(), st.integers(1, 100_000))
def test_any_situation_has_one_status_that_stays(situation, later_s):
    first = situation.make()
    check_status(first)
    assert situation.make(status=first) == first
    due = deadline_s(situation.pool(), situation.pods, now_s=situation.now_s)
    if due is None or later_s < due:
        assert situation.make(status=first, now_s=situation.now_s + later_s) == first
    ready = conditions(first)["Ready"]
    verdict = kstatus({"metadata": {"generation": 4}, "status": first})
    assert (verdict == "Failed") == ("Stalled" in conditions(first))
    assert verdict != "Current" or ready["status"] == "True"


@pytest.mark.parametrize(
    ("pods", "changes", "words"),
    [
        pytest.param([pod(0, revision="old"), pod(1)], {"partition": 1}, "1/2 updated", id="one is through"),
        pytest.param([pod(0, ready=False), pod(1)], {}, "1/2 updated", id="the last one loads"),
        pytest.param([pod(0, draining=True), pod(1)], {"partition": 1}, "2/2 updated, 1 draining", id="one drains"),
        pytest.param([pod(0), pod(1)], {"current": "new"}, None, id="it is over"),
        pytest.param([pod(0), pod(1)], {"caught_up": False, "partition": 2}, None, id="nobody knows yet"),
    ],
)
def test_how_far_a_roll_out_is_stands_in_the_column(pods, changes, words):
    case = Case(pods=pods, statefulsets={"B200": {"current": "old", **changes}}, expect={}, kstatus="")
    status = case.make()
    assert status["summary"].get("scaling") == words
    [ready] = [c for c in status["conditions"] if c["type"] == "Ready"]
    assert (ready["reason"] == "RollingOut") == (changes.get("current") != "new")
