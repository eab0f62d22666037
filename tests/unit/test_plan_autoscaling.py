"""What a user reads of the autoscaler: conditions, figures, history; and that a pool at rest is never written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sglpool.api.conditions import TABLE
from sglpool.api.pool import Pool
from sglpool.api.status import InferencePoolStatus
from sglpool.plan import Observed
from sglpool.plan.autoscaling import (
    HISTORY,
    Load,
    Told,
    autoscaling_status,
    kv_percent,
    load_status,
    policy_of,
    scaling_condition,
)
from sglpool.plan.status import make_status
from sglpool.scaling import Decision, Reason
from support import pools
from support.observed import observed_pod, observed_statefulset

Json = dict[str, Any]
NOW_S = 1_000_000.0


def autoscaled(status: Json | None = None, **spec: Any) -> Pool:
    bounds = {"replicas": None, "autoscaling": {"minReplicas": 2, "maxReplicas": 8}}
    return replace(pools.pool(bounds | spec, metadata={"uid": "pool", "generation": 4}), status=status or {})


def decided(reason: Reason = Reason.WITHIN_TARGET, *, valid: bool = True, total: int = 2, **inputs: float) -> Told:
    decision = Decision(
        wanted={"B200": total, "B300": 0}, reason=reason, message="The load fits.", inputs=inputs, valid=valid
    )
    return Told(decision=decision)


def test_the_policy_follows_the_spec_and_its_sizes():
    pool = autoscaled(
        gpus=[{"type": "B200", "maxReplicas": 5, "memFractionStaticPercent": 90}, {"type": "B300", "minReplicas": 1}],
        engine={"startupTimeout": "30m", "maxRunningRequests": 7},
    )
    policy = policy_of(pool, pools.size(pool))
    assert policy is not None
    assert (policy.min_replicas, policy.max_replicas, policy.target_kv_utilization) == (2, 8, 0.8)
    assert policy.startup_timeout_s == 1800.0
    b200, b300 = policy.types
    assert (b200.type, b200.max_replicas, b200.min_replicas, b200.max_running_requests) == ("B200", 5, 0, 7)
    assert b200.target_running_requests == 4
    assert (b300.type, b300.min_replicas, b300.usable) == ("B300", 1, True)


def test_a_type_that_does_not_fit_is_never_to_grow():
    pool = autoscaled(kvCache={"hiCache": {"size": "9000G"}})
    policy = policy_of(pool, pools.size(pool))
    assert policy is not None
    assert not any(one.usable for one in policy.types)
    unknown = autoscaled(gpus=[{"type": "X999"}])
    policy = policy_of(unknown, pools.size(unknown))
    assert policy is not None
    assert [(one.usable, one.target_running_requests) for one in policy.types] == [(False, 1)]


def test_a_fixed_pool_has_no_policy():
    assert policy_of(pools.pool(), pools.size(pools.pool())) is None


@pytest.mark.parametrize("reason", [*Reason])
def test_every_decision_has_a_condition_of_the_closed_table(reason):
    found = scaling_condition(autoscaled(), decided(reason))
    assert found.reason in TABLE["ScalingActive"]
    assert found.message
    assert "{" not in found.message


@pytest.mark.parametrize(
    ("reason", "status", "shown"),
    [
        (Reason.WITHIN_TARGET, "True", "ValidMetrics"),
        (Reason.NO_LOAD_TOTAL, "False", "MetricsUnavailable"),
        (Reason.REPLICAS_UNREADABLE, "False", "ReplicasUnreadable"),
        (Reason.AT_MAXIMUM, "True", "AtMaximum"),
        (Reason.NO_ROOM, "True", "NoRoom"),
    ],
)
def test_the_condition_tells_whether_the_autoscaler_acts(reason, status, shown):
    found = scaling_condition(autoscaled(), decided(reason))
    assert (found.status, found.reason) == (status, shown)


def test_what_could_not_be_read_is_named_and_counted():
    told = replace(
        decided(Reason.NO_LOAD_TOTAL, valid=False), problems=("Router a fails.", "Router b fails.", "c", "d")
    )
    message = scaling_condition(autoscaled(), told).message
    assert message == (
        "The requests in flight cannot be read. Router a fails. Router b fails. And 2 more. "
        "The size is held within its bounds."
    )


def test_before_the_first_decision_what_stands_stands():
    assert scaling_condition(autoscaled(), None).reason == "Pending"
    stored = {"conditions": [{"type": "ScalingActive", "reason": "AtMaximum", "message": "As before."}]}
    found = scaling_condition(autoscaled(stored), None)
    assert (found.reason, found.message) == ("AtMaximum", "As before.")
    was_fixed = {"conditions": [{"type": "ScalingActive", "reason": "Disabled", "message": "Fixed."}]}
    assert scaling_condition(autoscaled(was_fixed), None).reason == "Pending"


def test_figures_are_rounded():
    told = decided(in_flight=17.3333, need=123456.0, share=0.123456, nothing=0.0, never=float("nan"))
    status = autoscaling_status(autoscaled(), 2, told, now_s=NOW_S)
    assert status is not None
    assert status["inputs"] == {"in_flight": 17.3, "need": 123456, "share": 0.123, "nothing": 0}


def test_changes_of_size_are_remembered_with_their_reasons_and_no_more_than_five():
    status: Json = {}
    for step in range(9):
        pool = autoscaled({"autoscaling": status} if status else {})
        told = decided(Reason.LOAD_ABOVE_TARGET if step else Reason.WITHIN_TARGET)
        status = autoscaling_status(pool, 2 + step, told, now_s=NOW_S + step) or {}
    assert len(status["history"]) == HISTORY
    newest = status["history"][0]
    assert newest == {"time": "1970-01-12T13:46:48Z", "from": 9, "to": 10, "reason": "LoadAboveTarget"}
    assert status["lastScaleTime"] == newest["time"]
    InferencePoolStatus.model_validate({"autoscaling": status})


def test_the_first_size_is_no_change():
    status = autoscaling_status(autoscaled(), 2, decided(), now_s=NOW_S)
    assert status is not None
    assert "history" not in status
    assert "lastScaleTime" not in status


def test_a_changed_bound_is_a_change_even_before_a_decision():
    stored = {"autoscaling": {"desired": 2, "reason": "WithinTarget", "message": "m", "inputs": {"need": 3}}}
    status = autoscaling_status(autoscaled(stored), 3, None, now_s=NOW_S)
    assert status is not None
    assert status["history"][0]["reason"] == "Bounds"
    assert (status["reason"], status["inputs"]) == ("WithinTarget", {"need": 3})


@pytest.mark.parametrize(
    ("used", "total", "shown"),
    [(0, 100, 0), (1, 1000, 5), (44, 100, 45), (42, 100, 40), (100, 100, 100), (5, 0, None)],
)
def test_kv_is_shown_in_steps(used, total, shown):
    assert kv_percent(used, total) == shown


def test_unknown_load_is_left_out_and_never_zero():
    assert load_status(autoscaled(), Told()) is None
    assert load_status(autoscaled(), Told(load=Load(running_requests=0))) == {"runningRequests": 0}


def make(pool: Pool, told: Told | None, *, draining: bool = False, desired: int = 2) -> Json:
    observed = Observed(
        statefulsets=(observed_statefulset(replicas=2, uid="sts", owner_uid="pool"),),
        pods=(observed_pod(0), observed_pod(1, draining=draining)),
        refusals={},
    )
    return make_status(
        pool, pools.size(pool), observed, desired={"B200": desired, "B300": 0}, blockers=(), now_s=NOW_S, told=told
    )


def test_the_table_of_kubectl_says_why_and_what_leaves():
    told = replace(decided(Reason.LOAD_BELOW_TARGET, total=1), load=Load(running_requests=3, kv_utilization_percent=10))
    status = make(autoscaled(), told, draining=True, desired=1)
    InferencePoolStatus.model_validate(status)
    assert status["summary"]["scaling"] == "LoadBelowTarget, 1 draining"
    assert status["load"] == {"runningRequests": 3, "kvUtilizationPercent": 10}
    fixed = pools.pool({"replicas": 2}, metadata={"uid": "pool"})
    assert "scaling" not in make(fixed, None)["summary"]
    assert make(fixed, None, draining=True, desired=1)["summary"]["scaling"] == "1 draining"


def test_the_same_facts_give_the_same_status_to_the_letter():
    told = replace(decided(Reason.LOAD_ABOVE_TARGET, need=1.23456), load=Load(running_requests=3))
    first = make(autoscaled({"autoscaling": {"desired": 1, "reason": "WithinTarget"}}), told)
    assert first["autoscaling"]["history"][0]["from"] == 1
    assert make(autoscaled(first), told) == first


def test_a_restart_of_the_operator_alone_writes_nothing():
    told = replace(decided(Reason.AT_MAXIMUM, need=9.0), load=Load(running_requests=3, kv_utilization_percent=50))
    first = make(autoscaled(), told)
    assert make(autoscaled(first), None) == first
