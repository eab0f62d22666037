"""The operator's cache: news in any order, and listings that heal what the watch missed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sglpool.api import names
from sglpool.controller.store import Store, pool_key

KEY = ("serving", "kimi")


def pod(ordinal: int, *, version: int, uid: str | None = None, ready: bool = False, pool: str = "kimi") -> dict:
    return {
        "metadata": {
            "name": f"kimi-b200-{ordinal}",
            "namespace": "serving",
            "uid": uid or f"uid-{ordinal}",
            "resourceVersion": str(version),
            "labels": {names.LABEL_POOL: pool, names.LABEL_GPU: "B200"},
        },
        "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": str(ready)}]},
    }


def statefulset(*, version: int, replicas: int = 1) -> dict:
    return {
        "metadata": {
            "name": "kimi-b200",
            "namespace": "serving",
            "uid": "sts",
            "resourceVersion": str(version),
            "labels": {names.LABEL_POOL: "kimi", names.LABEL_GPU: "B200"},
        },
        "spec": {"replicas": replicas},
    }


def listing(*manifests: dict) -> Store:
    found = Store()
    for manifest in manifests:
        found.put_pod(manifest)
    return found


def pods(store: Store) -> dict[str, str]:
    return {p.name: p.uid for p in store.observed(KEY, {}).pods}


def ready(store: Store) -> list[bool]:
    return [p.ready for p in store.observed(KEY, {}).pods]


def test_news_counts_only_if_the_planner_sees_a_difference():
    store = Store()
    assert store.put_pod(pod(0, version=1))
    assert not store.put_pod(pod(0, version=2)), "a new version that looks the same"
    assert store.put_pod(pod(0, version=3, ready=True))
    assert not store.put_pod(pod(0, version=3, ready=True)), "the same version again"


@given(st.permutations(range(1, 6)))
def test_out_of_order_news_ends_with_the_newest(order):
    store = Store()
    for version in order:
        store.put_statefulset(statefulset(version=version, replicas=version))
    assert [s.replicas for s in store.observed(KEY, {}).statefulsets] == [5]


def test_late_news_of_a_former_object_does_not_replace_its_successor():
    store = Store()
    store.put_pod(pod(0, version=1, uid="former"))
    store.put_pod(pod(0, version=9, uid="successor"))
    assert not store.put_pod(pod(0, version=5, uid="former"))
    store.forget(pod(0, version=6, uid="former"))
    assert pods(store) == {"kimi-b200-0": "successor"}


def test_a_deleted_object_does_not_come_back_by_late_news():
    store = Store()
    store.put_pod(pod(0, version=1))
    store.forget(pod(0, version=2))
    assert not store.put_pod(pod(0, version=3))
    assert pods(store) == {}
    assert store.keys() == []


def test_a_deletion_that_the_watch_missed_is_healed_by_the_listing():
    store = Store()
    store.put_pod(pod(0, version=1))
    store.put_pod(pod(1, version=2))
    mark = store.mark()
    store.replace(listing(pod(1, version=2)), mark=mark)
    assert list(pods(store)) == ["kimi-b200-1"]


def test_an_object_seen_after_the_mark_survives_a_listing_that_lacks_it():
    store = Store()
    mark = store.mark()
    store.put_pod(pod(0, version=8))
    store.replace(listing(), mark=mark)
    assert list(pods(store)) == ["kimi-b200-0"]


def test_a_deleted_object_is_not_brought_back_by_an_older_listing():
    store = Store()
    store.put_pod(pod(0, version=1))
    mark = store.mark()
    found = listing(pod(0, version=1))
    store.forget(pod(0, version=2))
    store.replace(found, mark=mark)
    assert pods(store) == {}
    # The next listing is newer than the burial, and is believed.
    store.replace(listing(pod(0, version=1)), mark=store.mark())
    assert list(pods(store)) == ["kimi-b200-0"]


def test_a_listing_brings_news_but_never_older_news():
    store = Store()
    store.put_pod(pod(0, version=5, ready=True))
    store.put_pod(pod(1, version=5))
    mark = store.mark()
    store.replace(listing(pod(0, version=4), pod(1, version=6, ready=True), pod(2, version=7)), mark=mark)
    assert ready(store) == [True, True, False]


def test_a_listing_started_before_newer_news_does_not_undo_it():
    store = Store()
    store.put_pod(pod(0, version=1))
    mark = store.mark()
    store.put_pod(pod(0, version=3, ready=True))
    store.replace(listing(pod(0, version=2)), mark=mark)
    assert ready(store) == [True]


def test_a_pool_whose_last_child_is_gone_leaves_nothing_behind():
    store = Store()
    store.put_pod(pod(0, version=1))
    store.add_child(KEY, "Service", "kimi-engine")
    store.replace(listing(), mark=store.mark())
    assert store.keys() == [KEY]
    store.forget_pool(KEY)
    assert store.keys() == []
    store.forget_pool(KEY)


def test_children_are_replaced_by_a_listing():
    store = Store()
    store.add_child(KEY, "Service", "kimi-engine")
    children = {KEY: {("ServiceAccount", "kimi-engine")}, ("other", "pool"): {("Service", "pool-engine")}}
    store.replace_children(children, surplus={})
    assert store.observed(KEY, {}).children == {("ServiceAccount", "kimi-engine")}
    assert store.observed(("other", "pool"), {}).children == {("Service", "pool-engine")}
    store.replace_children({}, surplus={})
    assert store.keys() == []


def test_an_object_without_our_label_is_kept_only_under_a_pool_that_is_named():
    store = Store()
    unlabelled = statefulset(version=1)
    unlabelled["metadata"]["labels"] = {}
    assert pool_key(unlabelled) is None
    assert not store.put_statefulset(unlabelled)
    assert not store.put_pod({"metadata": {"name": "x", "uid": "x", "resourceVersion": "1"}})
    store.forget(unlabelled)
    assert store.put_statefulset(unlabelled, KEY)
    assert store.statefulset_uid(KEY, "kimi-b200") == "sts"
    assert store.statefulset_uid(KEY, "kimi-b300") is None
    assert store.statefulset_uid(("other", "pool"), "kimi-b200") is None
    store.bury(KEY, name="kimi-b200", uid="sts")
    assert store.observed(KEY, {}).statefulsets == ()


def test_pods_of_routers_and_stores_are_told_from_engines():
    store = Store()
    for number, component in enumerate(("engine", "router", "valkey")):
        one = pod(number, version=number + 1)
        one["metadata"]["labels"][names.LABEL_COMPONENT] = component
        store.put_pod(one)
    observed = store.observed(KEY, {})
    assert [p.component for p in observed.pods] == ["engine"]
    assert [p.component for p in observed.router_pods] == ["router", "valkey"]


def test_a_deployment_goes_with_its_deletion_and_with_a_listing_that_lacks_it():
    store = Store()
    manifest = {**statefulset(version=3), "kind": "Deployment"}
    assert store.put_deployment(manifest)
    assert not store.put_deployment(manifest)
    store.forget(manifest)
    assert store.observed(KEY, {}).deployments == ()
    again = {**manifest, "metadata": {**manifest["metadata"], "uid": "another", "resourceVersion": "5"}}
    store.put_deployment(again)
    store.replace(Store(), mark=store.mark())
    assert store.keys() == []
