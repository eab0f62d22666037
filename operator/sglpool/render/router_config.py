"""What the router of a pool is told: Envoy's shape, the picker's settings, and which fields they depend on.

Sizes that change by the hour (replicas, autoscaling) enter only coarsely, so that scaling a pool never replaces its
routers. Not here: the texts that Envoy reads (`render.envoy`).
"""

from __future__ import annotations

from collections.abc import Sequence

from sglpool.api import names
from sglpool.api.engine import Resources
from sglpool.api.pool import Pool
from sglpool.render.envoy.bootstrap import files as envoy_files
from sglpool.render.envoy.shape import RouterShape
from sglpool.render.hashes import content_hash
from sglpool.render.quantities import same_amount
from sglpool.render.router_deadlines import STREAM_GRACE_S
from sglpool.routing.pickerconfig import CONFIG_PATH, HTTP_PORT, PickerConfig
from sglpool.sizing.pools import SizedGPU

CONFIG_DIR = CONFIG_PATH.rpartition("/")[0]
API_KEYS_DIR = "/etc/sglpool/api-keys"
TLS_DIR = "/etc/sglpool/tls"
STORE_SECRET_DIR = "/etc/sglpool/store"
STORE_PASSWORD_FILE = "password"
STORE_CA_DIR = "/etc/sglpool/store-ca"
STORE_CA_FILE = "ca.crt"

QUEUE_ALLOWANCE = 16
"""Requests beyond the engine's running limit that the router keeps on a replica."""
ASSUMED_RUNNING_REQUESTS = 12
"""Running limit of a model that nobody knows; such a pool starts no engine."""
SMALLEST_FLEET = 16

_Json = dict[str, object]


def uses_tls(pool: Pool) -> bool:
    """Whether the router speaks TLS."""
    return pool.spec.router.tls is not None


def max_concurrent_requests(pool: Pool, sized: Sequence[SizedGPU]) -> int:
    """Most requests that the router keeps on one replica."""
    if pool.spec.router.max_concurrent_requests is not None:
        return pool.spec.router.max_concurrent_requests
    limits = [one.request.max_running_requests for one in sized if one.request is not None]
    running = pool.spec.engine.max_running_requests or min(limits, default=ASSUMED_RUNNING_REQUESTS)
    return running + QUEUE_ALLOWANCE


def largest_fleet(pool: Pool) -> int:
    """Replicas that Envoy's limits leave room for: a power of two, so that it hardly ever changes."""
    spec = pool.spec
    wanted = spec.autoscaling.max_replicas if spec.autoscaling is not None else spec.replicas or 0
    return int(1 << (max(wanted, SMALLEST_FLEET) - 1).bit_length())


def weights(sized: Sequence[SizedGPU]) -> dict[str, float]:
    """Relative capacity by GPU type: what a replica of each should carry, against the first that is known."""
    targets = {one.entry.type: one.fit.target_running_requests for one in sized if one.fit is not None}
    first = next((target for target in targets.values() if target > 0), 0)
    return {gpu: round(target / first, 2) for gpu, target in targets.items() if target > 0}


def router_shape(pool: Pool, sized: Sequence[SizedGPU]) -> RouterShape:
    """What Envoy's configuration depends on."""
    router = pool.spec.router
    return RouterShape(
        pool=pool.name,
        max_replicas=largest_fleet(pool),
        max_concurrent_requests=max_concurrent_requests(pool, sized),
        body_limit_bytes=router.body_limit,
        api_keys=router.auth is not None,
        tls_dir=TLS_DIR if uses_tls(pool) else None,
        stream_grace_s=STREAM_GRACE_S,
        http_port=HTTP_PORT,
        config_dir=CONFIG_DIR,
    )


def picker_config(pool: Pool, sized: Sequence[SizedGPU]) -> PickerConfig:
    """What the picker is told."""
    shape = router_shape(pool, sized)
    return PickerConfig(
        pool=pool.name,
        pool_uid=pool.uid,
        namespace=pool.namespace,
        # Routers too: a picker finds its siblings, and sees the deletion of its own pod.
        label_selector=f"{names.LABEL_POOL}={pool.name},"
        f"{names.LABEL_COMPONENT} in ({names.COMPONENT_ENGINE},{names.COMPONENT_ROUTER})",
        engine_port=names.ENGINE_PORT,
        weights=weights(sized),
        max_concurrent_requests=shape.max_concurrent_requests,
        max_queued_requests=pool.spec.engine.max_queued_requests,
        store_url=store_url(pool),
        store_password_file=f"{STORE_SECRET_DIR}/{STORE_PASSWORD_FILE}" if has_store_password(pool) else None,
        store_ca_file=f"{STORE_CA_DIR}/{STORE_CA_FILE}" if has_store_ca(pool) else None,
        routers=pool.spec.router.replicas,
        api_keys_dir=API_KEYS_DIR if shape.api_keys else None,
        tls_dir=shape.tls_dir,
        listener=shape.to_json(),
        drain_grace_s=STREAM_GRACE_S,
    )


def router_files(pool: Pool, sized: Sequence[SizedGPU]) -> dict[str, str]:
    """Every file of the router's ConfigMap, by name."""
    own = {CONFIG_PATH.rpartition("/")[2]: picker_config(pool, sized).to_json()}
    return envoy_files(router_shape(pool, sized)) | own


def store_url(pool: Pool) -> str:
    """URL of the shared memory of conversations, empty when each router has its own."""
    store = pool.spec.router.session_store
    if store is None:
        return ""
    if store.valkey is None:
        return f"redis://{names.store_name(pool.name)}.{pool.namespace}.svc:{names.STORE_PORT}"
    scheme, _, rest = store.valkey.url.partition("://")
    # Valkey's own names of the schemes mean the same, but not every client knows them.
    return f"{scheme.replace('valkey', 'redis')}://{rest}"


def has_store_password(pool: Pool) -> bool:
    """Whether the store of the user's wants a password."""
    store = pool.spec.router.session_store
    return store is not None and store.valkey is not None and store.valkey.password_secret is not None


def has_store_ca(pool: Pool) -> bool:
    """Whether the certificate of the user's store has a CA of its own."""
    store = pool.spec.router.session_store
    return store is not None and store.valkey is not None and store.valkey.ca_secret is not None


def restarting_fields(pool: Pool, sized: Sequence[SizedGPU]) -> _Json:
    """What a change of replaces router pods: the user's choices and what follows from them, no rendered text.

    Fields at their default are left out, so that a later version may add some without replacing anybody's routers.
    """
    spec = pool.spec
    router = spec.router.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"resources"})
    template = spec.template.model_dump(
        mode="json",
        by_alias=True,
        exclude_defaults=True,
        include={"tolerations", "image_pull_secrets", "priority_class_name"},
    )
    chosen: _Json = {
        "router": router,
        "resources": _amounts(spec.router.resources),
        "template": {key: _as_set(value) if isinstance(value, list) else value for key, value in template.items()},
        "maxConcurrentRequests": max_concurrent_requests(pool, sized),
        "maxQueuedRequests": spec.engine.max_queued_requests,
        "fleet": largest_fleet(pool),
        "weights": {gpu: weight for gpu, weight in weights(sized).items() if weight != 1},
    }
    return {key: value for key, value in chosen.items() if value not in ({}, [])}


def _as_set(items: list[object]) -> list[str]:
    return sorted(content_hash(item) for item in items)


def _amounts(resources: Resources) -> _Json:
    parts = {"requests": resources.requests, "limits": resources.limits}
    return {part: {k: same_amount(v) for k, v in values.items()} for part, values in parts.items() if values}
