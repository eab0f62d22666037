"""The partition and the pods to replace, trap by trap.

A StatefulSet is written as one word per ordinal: `old` and `new` are ready on that revision; `-loading` comes up,
`-pending` has no node, `-crash` ends again and again, `-ending` is going away; `none` is missing.
"""

from dataclasses import replace

import pytest

from sglpool.plan import ObservedPod, ObservedStatefulSet
from sglpool.plan.rollout import (
    Pace,
    in_any_order,
    next_of_any,
    next_partition,
    outdated_down,
    pods_to_replace,
    rolling_out,
)
from support.observed import observed_pod, observed_statefulset


def pod(ordinal: int, word: str) -> ObservedPod:
    revision, _, state = word.partition("-")
    return observed_pod(
        ordinal,
        revision=revision,
        ready=not state,
        terminating=state == "ending",
        unschedulable="0/4 nodes are available." if state == "pending" else "",
        node="" if state == "pending" else "n",
        restarts=5 if state == "crash" else 0,
    )


def world(words: str, partition: int, replicas: int | None = None) -> tuple[ObservedStatefulSet, list[ObservedPod]]:
    states = words.split()
    pods = [pod(ordinal, word) for ordinal, word in enumerate(states) if word != "none"]
    size = len(states) if replicas is None else replicas
    return observed_statefulset(replicas=size, partition=partition, current="old", update="new"), pods


@pytest.mark.parametrize(
    ("words", "partition", "most", "expected"),
    [
        # One after another, from the top.
        ("old old old", 3, 1, 2),
        ("old old new-loading", 2, 1, 2),
        ("old old new", 2, 1, 1),
        ("new new new", 3, 1, 0),
        ("old old old", 3, 2, 1),
        ("old old old", 3, 9, 0),
        # The controller has not replaced the pod yet: it is on its way.
        ("old old old", 2, 1, 2),
        ("old old old-ending", 2, 1, 2),
        ("old old none", 2, 1, 2),
        # A bad template keeps what it has.
        ("old old new-crash", 2, 1, 2),
        ("old old new-crash", 2, 2, 1),
        # A Pending ordinal gets the template first, and holds the rest; two at a time go past it.
        ("old old old-pending", 3, 1, 2),
        ("old old new-pending", 2, 1, 2),
        ("old old new-pending", 2, 2, 1),
        # Wherever it is that the new template breaks one, as in a StatefulSet that was made anew.
        ("new-crash old old", 3, 1, 3),
        ("new-crash old old", 3, 2, 2),
        # What is broken below never holds up its own cure; what is coming up does.
        ("old-crash old old", 3, 1, 2),
        ("old-pending old old", 3, 1, 2),
        ("old-loading old old", 3, 1, 3),
        ("old-ending old old", 3, 1, 3),
        ("none old old", 3, 1, 3),
        ("old-loading old old", 3, 2, 2),
        # All broken: one tries the new template; once it is ready, the rest follow at once.
        ("old-crash old-crash old-crash", 3, 1, 2),
        ("old-crash old-crash new-loading", 2, 1, 2),
        ("old-crash old-crash new", 2, 1, 0),
        # A node lost in mid roll-out: the unproven template does not collect the pod, the proven one does.
        ("old old-loading new-loading", 2, 1, 2),
        ("old none new-loading", 2, 1, 2),
        ("old old-loading new", 2, 1, 1),
        ("old-loading old new", 2, 1, 2),
        # Back to the old spec: what is ready on it is done at once, the broken one is taken in.
        ("new new bad-crash", 3, 1, 0),
        # A partition beyond the size, and no size at all.
        ("old old", 7, 1, 1),
        ("", 0, 1, 0),
    ],
)
def test_next_partition(words, partition, most, expected):
    statefulset, pods = world(words, partition)
    assert next_partition(statefulset, pods, Pace(max_unavailable=most)) == expected


def test_a_replica_that_is_refused_does_not_hold_up_the_template_that_cures_it():
    statefulset, pods = world("none old old", 3)
    assert next_partition(statefulset, pods, Pace(max_unavailable=1, refused=True)) == 2


def test_scaling_up_in_mid_roll_out_waits_for_the_new_replicas():
    statefulset, pods = world("old old new new-loading", 2)
    assert next_partition(statefulset, pods, Pace(max_unavailable=1)) == 2


def test_scaling_down_in_mid_roll_out_goes_on_from_the_new_top():
    statefulset, pods = world("old old new new", 2, replicas=2)
    assert next_partition(statefulset, pods, Pace(max_unavailable=1)) == 1


def test_pods_of_somebody_else_do_not_count():
    statefulset, pods = world("old old new", 2)
    stranger = observed_pod(2, revision="old", ready=False, owner_uid="other")
    assert next_partition(statefulset, [*pods, stranger], Pace(max_unavailable=1)) == 1
    assert pods_to_replace(statefulset, [stranger], max_unavailable=3) == ()


@pytest.mark.parametrize(
    ("words", "partition", "most", "expected"),
    [
        ("old old old", 3, 1, []),
        ("old old old", 2, 1, [2]),
        ("old old old", 1, 2, [1, 2]),
        # However far the partition was lowered, ready pods go in time.
        ("old old old", 0, 1, [2]),
        ("old old new-loading", 0, 1, []),
        ("old old new-loading", 0, 2, [1]),
        ("old old old-ending", 1, 1, []),
        # What is down and passed costs nothing to replace.
        ("old old-crash old-pending", 1, 1, [1, 2]),
        ("old old new-crash", 2, 1, []),
        # Below the partition: only what is down on an abandoned revision returns to the one that worked.
        ("old bad-crash new-crash", 2, 1, [1]),
        ("old bad new-crash", 2, 1, []),
        ("old old-crash new-crash", 2, 1, []),
        # Something below comes up: no ready pod is taken.
        ("old-loading old old", 1, 1, []),
        ("old-crash old old", 1, 1, [2]),
    ],
)
def test_pods_to_replace(words, partition, most, expected):
    statefulset, pods = world(words, partition)
    assert sorted(p.ordinal for p in pods_to_replace(statefulset, pods, max_unavailable=most)) == expected


def test_pods_beyond_the_size_are_left_to_the_controller():
    statefulset, pods = world("new new old-crash", 0, replicas=2)
    assert pods_to_replace(statefulset, pods, max_unavailable=1) == ()


@pytest.mark.parametrize(
    ("words", "partition", "through", "rolling"),
    [
        pytest.param("new new", 0, True, False, id="all have been ready on it"),
        pytest.param("new new", 1, True, True, id="one is held"),
        pytest.param("old new", 0, True, True, id="one runs another"),
        pytest.param("new-loading new", 0, True, False, id="one starts again: that is no roll-out"),
        pytest.param("new-loading new", 0, False, True, id="the last one loads"),
        pytest.param("none", 0, True, False, id="none is there"),
    ],
)
def test_rolling_out(words, partition, through, rolling):
    statefulset, pods = world(words, partition)
    assert rolling_out(replace(statefulset, current_revision="new" if through else "old"), pods) is rolling


def test_two_replicas_of_one_node_are_not_away_at_once_while_others_can_go():
    def partition(*nodes: str, most: int = 2) -> int:
        pods = [observed_pod(ordinal, revision="old", node=node) for ordinal, node in enumerate(nodes)]
        statefulset = observed_statefulset(replicas=len(nodes), partition=len(nodes), current="old")
        return next_partition(statefulset, pods, Pace(max_unavailable=most))

    assert partition("a", "b", "a", "b") == 2
    assert partition("a", "a", "b", "b") == 3
    assert partition("a", "a", "a") == 1, "they all are on one node: waiting saves nothing"
    assert partition("a", "b", "b", "b", most=3) == 3


@pytest.mark.parametrize(("restarts", "partition"), [(0, 3), (9, 2)], ids=["comes-up", "waits-for-this-cure"])
def test_a_neighbour_that_is_down_and_comes_up_keeps_a_replica_of_its_node(restarts, partition):
    pods = [
        observed_pod(0, revision="old", node="a"),
        observed_pod(1, revision="old", node="b", ready=False, restarts=restarts),
        observed_pod(2, revision="old", node="b"),
    ]
    statefulset = observed_statefulset(replicas=3, partition=3, current="old")
    assert next_partition(statefulset, pods, Pace(max_unavailable=1)) == partition


def test_what_waits_is_held_and_what_goes_for_another_reason_counts_as_down():
    statefulset, pods = world("old old old", 3)
    assert next_partition(statefulset, pods, Pace(max_unavailable=1, waits=frozenset({2}))) == 3
    assert next_partition(statefulset, pods, Pace(max_unavailable=1, waits=frozenset({1}))) == 2
    assert next_partition(statefulset, pods, Pace(max_unavailable=1, away=frozenset({0}))) == 3
    assert next_partition(statefulset, pods, Pace(max_unavailable=3, lowest=2)) == 2


def test_a_replica_that_returns_from_an_abandoned_revision_is_waited_for():
    pods = [
        observed_pod(0, revision="bad", ready=False, waiting=("ErrImagePull", "x")),
        observed_pod(1, revision="old"),
    ]
    statefulset = observed_statefulset(replicas=2, partition=2, current="old")
    assert next_partition(statefulset, pods, Pace(max_unavailable=1)) == 2


@pytest.mark.parametrize(
    ("words", "on_delete", "most", "so"),
    [
        pytest.param("old old new", False, 2, True, id="one is ready and two are left"),
        pytest.param("old old new", False, 1, False, id="one at a time needs no choice"),
        pytest.param("old old new-loading", False, 2, False, id="none is ready yet"),
        pytest.param("old old new-crash", False, 3, False, id="none will be"),
        pytest.param("old new new", False, 2, False, id="one is left: there is no choice"),
        pytest.param("old new new", True, 2, True, id="the last one of those"),
        pytest.param("new new new-loading", True, 2, False, id="none is left"),
        pytest.param("old old new-crash", True, 2, False, id="the only one was not so good after all"),
    ],
)
def test_a_roll_out_goes_on_in_any_order_when(words, on_delete, most, so):
    statefulset, pods = world(words, 0)
    statefulset = replace(statefulset, on_delete=on_delete)
    assert in_any_order(statefulset, pods, max_unavailable=most) is so


@pytest.mark.parametrize(
    ("words", "homes", "most", "taken"),
    [
        pytest.param("old old old old old new", "aabbcc", 3, [4, 3, 1], id="of three nodes"),
        pytest.param("old old old old old new", "aabbcc", 9, [4, 3, 1, 2, 0], id="of all, and then of any"),
        pytest.param("old old old old new-loading new", "aabbcc", 2, [3], id="one is away"),
        pytest.param("old old old old new-loading new", "aabbbc", 2, [1], id="whose neighbours wait"),
        pytest.param("old old old old new-loading new", "bbbbbc", 2, [3], id="nobody is elsewhere"),
        pytest.param("old old old old none new", "aabbcc", 3, [], id="one that has no node may get any"),
        pytest.param("old old old old old-crash new", "aabbcc", 2, [3, 1], id="the roll-out cures it"),
        pytest.param("old old old old new-crash new", "aabbcc", 2, [3], id="the roll-out has not cured it"),
    ],
)
def test_who_goes_next_in_any_order(words, homes, most, taken):
    statefulset, pods = world(words, 0)
    pods = [replace(pod, node=homes[pod.ordinal]) for pod in pods]
    assert [pod.ordinal for pod in next_of_any(statefulset, pods, Pace(max_unavailable=most))] == taken


def test_who_is_being_emptied_already_goes_first_whatever_its_node():
    statefulset, pods = world("old old old old none new", 0)
    pods = [replace(pod, node="aabbcc"[pod.ordinal], draining=pod.ordinal in {0, 1}) for pod in pods]
    assert [pod.ordinal for pod in next_of_any(statefulset, pods, Pace(max_unavailable=3))] == [1, 0]


def test_what_is_down_on_a_former_revision_is_made_anew():
    statefulset, pods = world("old-crash old new old-ending new-loading", 0)
    assert [pod.ordinal for pod in outdated_down(statefulset, pods)] == [0]
