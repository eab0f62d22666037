"""Hashes: one for what restarts pods, one for what was rendered, one for children that may change in place.

A hash here is a promise over versions: an upgraded sglpool that finds the same hash leaves the pods alone. Not here:
what follows from a difference (`plan`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from sglpool.api.base import Manifest, Model
from sglpool.api.engine import Resources
from sglpool.api.pool import Pool
from sglpool.render.quantities import same_amount
from sglpool.sizing.pools import SizedGPU

HASH_LENGTH = 10

_Json = dict[str, object]


def content_hash(content: object) -> str:
    """Ten hexadecimal digits for JSON data; the order of maps does not matter."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]


def children_hash(manifests: Iterable[Manifest]) -> str:
    """Hash of a set of manifests, in any order."""
    return content_hash(sorted(content_hash(manifest) for manifest in manifests))


def spec_hash(pool: Pool, sized: SizedGPU) -> str:
    """Hash of the fields whose edit restarts the replicas of one GPU type.

    Model, source, context, tensor parallelism, KV cache, speculation, engine (without startupTimeout), this type's
    memory fraction, and template. Targets, load, bounds, roll-out, router and other GPU types are not in it, nor is
    anything from the catalogue: neither may restart a model.

    Fields at their default are left out, so that a later version may add fields without changing any hash. The
    engine image is always in: its default names a version and will move. Within one API version no other default
    of these fields may change.
    """
    spec = pool.spec
    restarting: _Json = {
        "model": _dump(spec.model),
        "tensorParallelSize": spec.tensor_parallel_size,
        "kvCache": _dump(spec.kv_cache),
        "speculative": _dump(spec.speculative) if spec.speculative else {},
        "engine": _engine(pool),
        "gpu": {
            "type": sized.entry.type,
            "memFractionStaticPercent": sized.entry.mem_fraction_static_percent or 0,
        },
        "template": _template(pool),
    }
    return content_hash({key: value for key, value in restarting.items() if value})


def _dump(model: Model) -> _Json:
    return _pruned(model.model_dump(mode="json", by_alias=True, exclude_defaults=True))


def _pruned(fields: _Json) -> _Json:
    """Without empty maps, which ask for nothing; only `emptyDir: {}` says something by being there."""
    inner = {key: _pruned(value) if isinstance(value, dict) else value for key, value in fields.items()}
    return {key: value for key, value in inner.items() if value != {} or key == "emptyDir"}


def _engine(pool: Pool) -> _Json:
    engine = pool.spec.engine
    fields = {key: value for key, value in _dump(engine).items() if key not in {"startupTimeout", "env"}}
    fields["image"] = engine.image
    if engine.env:
        fields["env"] = {variable.name: _dump(variable) for variable in engine.env}
    return fields


def _template(pool: Pool) -> _Json:
    template = pool.spec.template
    fields = {key: value for key, value in _dump(template).items() if key != "resources"}
    # These lists are sets to Kubernetes.
    if template.tolerations:
        fields["tolerations"] = sorted(content_hash(_dump(toleration)) for toleration in template.tolerations)
    if template.image_pull_secrets:
        fields["imagePullSecrets"] = sorted(secret.name for secret in template.image_pull_secrets)
    resources = _resources(template.resources)
    return fields | ({"resources": resources} if resources else {})


def _resources(resources: Resources) -> _Json:
    amounts = {"requests": resources.requests, "limits": resources.limits}
    return {
        part: {name: same_amount(value) for name, value in values.items()} for part, values in amounts.items() if values
    }
