"""Every bad input that the project knows of, once: the API server, `sglpool plan` and the operator are tried on it.

A case changes one thing of a good pool. What the API server can see, both it and `sglpool plan` must refuse; what
takes the catalogue or arithmetic is accepted, called infeasible by `sglpool plan`, and a condition from the operator.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from support.pools import COMMIT, manifest

Json = dict[str, Any]
Change = Callable[[Json], None]


@dataclass(frozen=True, slots=True)
class BadInput:
    """One bad input.

    Attributes:
        id: What is wrong, in a word or two.
        change: Spoils a good pool.
        path: The field that the sentence must name.
        words: What the sentence must say: the rule and the remedy.
        server: What the API server must say, where its words differ.
    """

    id: str
    change: Change
    path: str
    words: tuple[str, ...]
    server: tuple[str, ...] = ()

    def manifest(self) -> Json:
        """The spoiled pool."""
        pool = copy.deepcopy(manifest())
        self.change(pool)
        return pool


def put(path: str, value: object) -> Change:
    """Set a field, `spec.gpus.0.type`, making maps on the way; None removes it."""

    def change(pool: Json) -> None:
        *parents, last = path.split(".")
        node: Any = pool
        for key in parents:
            node = node[int(key)] if isinstance(node, list) else node.setdefault(key, {})
        if isinstance(node, list):
            node[int(last)] = value
        elif value is None:
            del node[last]
        else:
            node[last] = value

    return change


def both(*changes: Change) -> Change:
    """Several changes that only together are wrong."""

    def change(pool: Json) -> None:
        for one in changes:
            one(pool)

    return change


_GQA = {"attention": "GQA", "layers": 60, "kvHeads": 8, "headDim": 128, "weights": "355G", "maxContextLength": 131072}
_GEOMETRY = put("spec.model.profile", None)
_SOURCE = "spec.model.source"
_DRAFT = {"source": {"huggingFace": {"repo": "a/draft", "revision": COMMIT}}}


def _geometry(**fields: object) -> Change:
    shape = {key: value for key, value in {**_GQA, **fields}.items() if value is not None}
    return both(_GEOMETRY, put("spec.model.geometry", shape))


_NAME = "metadata.name"
_REFUSED = (
    # names
    BadInput("name-41", put(_NAME, "a" * 41), _NAME, ("longer than 40", "shorten")),
    BadInput("name-digit-first", put(_NAME, "2-kimi"), _NAME, ("start with a letter", "rename")),
    BadInput("name-dot", put(_NAME, "kimi.k2"), _NAME, ("a-z, 0-9 and '-'", "rename")),
    BadInput("name-upper", put(_NAME, "Kimi"), _NAME, ("start with a letter", "rename"), ("lowercase",)),
    BadInput(
        "name-dash-last", put(_NAME, "kimi-"), _NAME, ("a-z, 0-9 and '-'", "rename"), ("end with an alphanumeric",)
    ),
    BadInput(
        "model-name-space", put("spec.model.name", "kimi k2"), "spec.model.name", ("'kimi k2'",), ("should match",)
    ),
    # unknown fields, missing fields, wrong types
    BadInput(
        "unknown-field",
        put("spec.kvCache.hicache", {"size": "1G"}),
        "spec.kvCache.hicache",
        ("hiCache", "remove it"),
        ("unknown field",),
    ),
    BadInput(
        "unknown-spec-field",
        put("spec.tensorParallel", 4),
        "spec.tensorParallel",
        ("tensorParallelSize?",),
        ("unknown field",),
    ),
    BadInput("unknown-top-level", put("specs", {}), "specs", ("remove it",), ("unknown field",)),
    BadInput("unknown-in-list", put("spec.gpus.0.max", 3), "spec.gpus[0].max", ("maxReplicas",), ("unknown field",)),
    BadInput("no-spec", lambda pool: pool.pop("spec"), "spec", ("is required",), ("Required value",)),
    BadInput("no-model", put("spec.model", None), "spec.model", ("is required",), ("Required value",)),
    BadInput("no-gpus", put("spec.gpus", []), "spec.gpus", ("at least 1",), ("at least 1",)),
    BadInput("text-for-number", put("spec.replicas", "2"), "spec.replicas", ("valid integer",), ("integer",)),
    BadInput("number-for-text", put("spec.model.name", 26), "spec.model.name", ("valid string",), ("string",)),
    BadInput("fraction", put("spec.replicas", 1.5), "spec.replicas", ("integer",), ("integer",)),
    BadInput(
        "negative-replicas",
        put("spec.replicas", -1),
        "spec.replicas",
        ("greater than or equal to 0",),
        ("greater than or equal to 0",),
    ),
    # sizes and units
    BadInput(
        "tp-3", put("spec.tensorParallelSize", 3), "spec.tensorParallelSize", ("1, 2, 4 or 8",), ('"1", "2", "4", "8"',)
    ),
    BadInput(
        "hicache-480", put("spec.kvCache.hiCache.size", 480), "spec.kvCache.hiCache.size", ("in bytes", "480G", "Auto")
    ),
    BadInput(
        "hicache-480-text", put("spec.kvCache.hiCache.size", "480"), "spec.kvCache.hiCache.size", ("in bytes", "480G")
    ),
    BadInput(
        "hicache-480M", put("spec.kvCache.hiCache.size", "480M"), "spec.kvCache.hiCache.size", ("in bytes", "480G")
    ),
    BadInput(
        "hicache-unit",
        put("spec.kvCache.hiCache.size", "480GB"),
        "spec.kvCache.hiCache.size",
        ("'480GB'", "480G"),
        ("should match",),
    ),
    BadInput(
        "hicache-word",
        put("spec.kvCache.hiCache.size", "auto"),
        "spec.kvCache.hiCache.size",
        ("'auto'", "480G"),
        ("should match",),
    ),
    BadInput(
        "body-limit-unit",
        put("spec.router.bodyLimit", "32 MB"),
        "spec.router.bodyLimit",
        ("'32 MB'", "512Gi"),
        ("should match",),
    ),
    BadInput(
        "duration-unit",
        put("spec.engine.startupTimeout", "60"),
        "spec.engine.startupTimeout",
        ("'60'", "15m"),
        ("should match",),
    ),
    BadInput(
        "duration-days",
        put("spec.rollout.drainTimeout", "1d"),
        "spec.rollout.drainTimeout",
        ("'1d'", "1h30m"),
        ("should match",),
    ),
    BadInput(
        "duration-number",
        put("spec.rollout.drainTimeout", 900),
        "spec.rollout.drainTimeout",
        ("900", "15m"),
        ("must be of type string",),
    ),
    BadInput(
        "fraction-percent",
        put("spec.gpus.0.memFractionStaticPercent", 0.9),
        "spec.gpus[0].memFractionStaticPercent",
        ("0.9", "integer"),
        ("integer",),
    ),
    BadInput(
        "fraction-99",
        put("spec.gpus.0.memFractionStaticPercent", 99),
        "spec.gpus[0].memFractionStaticPercent",
        ("99", "less than or equal to 97"),
        ("less than or equal to 97",),
    ),
    BadInput(
        "memory-milli",
        put("spec.template.resources.limits", {"memory": "900m"}),
        "spec.template.resources",
        ("memory", "900Gi"),
    ),
    BadInput(
        "memory-word",
        put("spec.template.resources.limits", {"memory": "lots"}),
        "spec.template.resources.limits.memory",
        ("'lots'",),
        ("should match",),
    ),
    BadInput(
        "chunk-100", put("spec.engine.chunkedPrefillSize", 100), "spec.engine.chunkedPrefillSize", ("multiple", "64")
    ),
    # GPU types and replicas
    BadInput("gpu-twice", put("spec.gpus.1.type", "B200"), "spec.gpus[1]", ("twice", "merge"), ("Duplicate value",)),
    BadInput(
        "gpu-type-long",
        put("spec.gpus.0.type", "RTXPRO6000BSE"),
        "spec.gpus[0].type",
        ("'RTXPRO6000BSE'", "11 characters"),
        ("11",),
    ),
    BadInput(
        "gpu-type-lower", put("spec.gpus.0.type", "b200"), "spec.gpus[0].type", ("'b200'", "B200"), ("should match",)
    ),
    BadInput(
        "gpu-type-product",
        put("spec.gpus.0.type", "NVIDIA-B200"),
        "spec.gpus[0].type",
        ("'NVIDIA-B200'", "B200"),
        ("should match",),
    ),
    BadInput(
        "five-types",
        put("spec.gpus", [{"type": f"G{n}"} for n in range(5)]),
        "spec.gpus",
        ("at most 4",),
        ("at most 4",),
    ),
    BadInput(
        "min-over-max",
        both(put("spec.gpus.0.minReplicas", 3), put("spec.gpus.0.maxReplicas", 2)),
        "spec.gpus[0].minReplicas",
        ("larger than maxReplicas", "lower minReplicas"),
    ),
    BadInput(
        "replicas-and-autoscaling",
        put("spec.autoscaling", {"maxReplicas": 4}),
        "spec",
        ("cannot be set while spec.autoscaling is", "remove autoscaling"),
    ),
    BadInput("no-replicas", put("spec.replicas", None), "spec", ("one of replicas", "autoscaling")),
    BadInput(
        "over-maxima",
        both(put("spec.gpus.0.maxReplicas", 1), put("spec.gpus.1.maxReplicas", 0)),
        "spec.replicas",
        ("sum of gpus[].maxReplicas", "raise"),
    ),
    BadInput(
        "autoscaling-min-over-max",
        both(put("spec.replicas", None), put("spec.autoscaling", {"minReplicas": 5, "maxReplicas": 4})),
        "spec.autoscaling.minReplicas",
        ("larger than maxReplicas",),
    ),
    BadInput(
        "autoscaling-from-0",
        both(put("spec.replicas", None), put("spec.autoscaling", {"minReplicas": 0, "maxReplicas": 4})),
        "spec.autoscaling.minReplicas",
        ("greater than or equal to 1",),
        ("greater than or equal to 1",),
    ),
    BadInput(
        "autoscaling-no-max",
        both(put("spec.replicas", None), put("spec.autoscaling", {"minReplicas": 1})),
        "spec.autoscaling.maxReplicas",
        ("is required",),
        ("Required value",),
    ),
    BadInput(
        "autoscaling-max-under-types",
        both(
            put("spec.replicas", None), put("spec.autoscaling", {"maxReplicas": 4}), put("spec.gpus.1.minReplicas", 5)
        ),
        "spec.autoscaling",
        ("sum of gpus[].minReplicas is larger", "raise autoscaling.maxReplicas"),
    ),
    BadInput(
        "autoscaling-min-over-types",
        both(
            put("spec.replicas", None),
            put("spec.autoscaling", {"minReplicas": 4, "maxReplicas": 8}),
            put("spec.gpus", [{"type": "B200", "maxReplicas": 2}, {"type": "B300", "maxReplicas": 1}]),
        ),
        "spec.autoscaling",
        ("sum of gpus[].maxReplicas is smaller", "lower autoscaling.minReplicas"),
    ),
    *(
        BadInput(
            f"target-{target}",
            put("spec.gpus.0.targetRunningRequests", target),
            "spec.gpus[0].targetRunningRequests",
            ("greater than or equal to 1",),
            ("greater than or equal to 1",),
        )
        for target in (0, -4)
    ),
    BadInput(
        "target-over-limit",
        both(put("spec.gpus.1.targetRunningRequests", 9), put("spec.engine.maxRunningRequests", 8)),
        "spec.gpus",
        ("larger than engine.maxRunningRequests", "lower the target"),
    ),
    BadInput(
        "kv-target-0",
        both(put("spec.replicas", None), put("spec.autoscaling", {"maxReplicas": 4, "targetKVUtilizationPercent": 0})),
        "spec.autoscaling.targetKVUtilizationPercent",
        ("greater than or equal to 1",),
        ("greater than or equal to 1",),
    ),
    BadInput(
        "kv-target-over-capacity",
        both(
            put("spec.replicas", None), put("spec.autoscaling", {"maxReplicas": 4, "targetKVUtilizationPercent": 101})
        ),
        "spec.autoscaling.targetKVUtilizationPercent",
        ("less than or equal to 100",),
        ("less than or equal to 100",),
    ),
    # model and source
    BadInput("profile-and-geometry", put("spec.model.geometry", _GQA), "spec.model", ("exactly one of profile",)),
    BadInput("no-profile", put("spec.model.profile", None), "spec.model", ("exactly one of profile", "geometry")),
    BadInput(
        "geometry-mla",
        _geometry(attention="MLA"),
        "spec.model.geometry",
        ("kvLoraRank and ropeHeadDim", "kv_lora_rank"),
    ),
    BadInput(
        "geometry-gqa", _geometry(kvHeads=None), "spec.model.geometry", ("kvHeads and headDim", "num_key_value_heads")
    ),
    BadInput(
        "geometry-mha",
        _geometry(attention="MHA"),
        "spec.model.geometry.attention",
        ("'MLA' or 'GQA'",),
        ('"MLA", "GQA"',),
    ),
    BadInput("no-source", put(_SOURCE, {}), _SOURCE, ("exactly one of huggingFace",)),
    BadInput("two-sources", put(f"{_SOURCE}.hostPath", {"path": "/models"}), _SOURCE, ("exactly one of huggingFace",)),
    BadInput(
        "branch",
        put(f"{_SOURCE}.huggingFace.revision", "main"),
        f"{_SOURCE}.huggingFace.revision",
        ("40 hexadecimal digits", "not a branch", "Copy the commit"),
    ),
    BadInput(
        "short-commit",
        put(f"{_SOURCE}.huggingFace.revision", "0123abc"),
        f"{_SOURCE}.huggingFace.revision",
        ("40 hexadecimal digits",),
    ),
    BadInput(
        "repo-url",
        put(f"{_SOURCE}.huggingFace.repo", "https://huggingface.co/a/b"),
        f"{_SOURCE}.huggingFace.repo",
        ("huggingface.co", "owner/name"),
        ("should match",),
    ),
    BadInput(
        "relative-path",
        put(_SOURCE, {"hostPath": {"path": "models"}}),
        f"{_SOURCE}.hostPath.path",
        ("'models'", "'/'"),
        ("should match",),
    ),
    BadInput(
        "cache-without-hub",
        put(_SOURCE, {"hostPath": {"path": "/m"}, "cache": {"emptyDir": {}}}),
        f"{_SOURCE}.cache",
        ("only serves huggingFace", "remove it"),
    ),
    BadInput(
        "two-caches",
        put(f"{_SOURCE}.cache", {"emptyDir": {}, "hostPath": "/c"}),
        f"{_SOURCE}.cache",
        ("exactly one of hostPath",),
    ),
    BadInput(
        "draft-cache",
        both(
            put(f"{_SOURCE}.cache", {"emptyDir": {}}), put("spec.speculative.draftModel.source.cache", {"emptyDir": {}})
        ),
        "spec.speculative",
        ("one cache", "remove"),
    ),
    BadInput(
        "context-tiny",
        put("spec.model.contextLength", 256),
        "spec.model.contextLength",
        ("greater than or equal to 1024",),
        ("greater than or equal to 1024",),
    ),
    # KV cache and speculation
    BadInput(
        "kv-dtype-word",
        put("spec.kvCache.dtype", "fp8"),
        "spec.kvCache.dtype",
        ("'fp8'", "'fp8_e4m3'"),
        ("Unsupported value", "fp8_e4m3"),
    ),
    BadInput(
        "write-policy",
        put("spec.kvCache.hiCache.writePolicy", "write_back"),
        "spec.kvCache.hiCache.writePolicy",
        ("'WriteBack'",),
        ("Unsupported value", "WriteBack"),
    ),
    BadInput(
        "draft-without-algorithm",
        put("spec.speculative.algorithm", None),
        "spec.speculative.algorithm",
        ("is required",),
        ("Required value",),
    ),
    BadInput(
        "algorithm-without-draft",
        put("spec.speculative.draftModel", None),
        "spec.speculative.algorithm",
        ("needs draftModel", "NEXTN"),
    ),
    BadInput(
        "nextn-with-draft",
        put("spec.speculative.algorithm", "NEXTN"),
        "spec.speculative.draftModel",
        ("own layer", "remove draftModel"),
    ),
    BadInput(
        "algorithm-word",
        put("spec.speculative.algorithm", "MEDUSA"),
        "spec.speculative.algorithm",
        ("'MEDUSA'", "'DFLASH'"),
        ("Unsupported value", "DFLASH"),
    ),
    # engine
    BadInput(
        "extra-equals",
        put("spec.engine.extraArgs", ["--tp-size=8"]),
        "spec.engine.extraArgs",
        ("--tp-size is written by sglpool", "remove it"),
    ),
    BadInput(
        "extra-two-words",
        put("spec.engine.extraArgs", ["--tp", "8"]),
        "spec.engine.extraArgs",
        ("--tp is written by sglpool", "remove it"),
    ),
    BadInput(
        "extra-abbreviated",
        put("spec.engine.extraArgs", ["--mem-frac", "0.9"]),
        "spec.engine.extraArgs",
        ("--mem-frac is written by sglpool",),
    ),
    BadInput(
        "env-both",
        put("spec.engine.env", [{"name": "A", "value": "1", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]),
        "spec.engine.env[0]",
        ("either value or valueFrom",),
    ),
    BadInput(
        "env-name",
        put("spec.engine.env", [{"name": "MY-VAR", "value": "1"}]),
        "spec.engine.env[0].name",
        ("'MY-VAR'",),
        ("should match",),
    ),
    BadInput(
        "env-twice",
        put("spec.engine.env", [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]),
        "spec.engine.env[1]",
        ("twice",),
        ("Duplicate value",),
    ),
    BadInput(
        "pull-policy",
        put("spec.engine.imagePullPolicy", "Sometimes"),
        "spec.engine.imagePullPolicy",
        ("'IfNotPresent'",),
        ("Unsupported value",),
    ),
    # template
    BadInput(
        "gpu-in-resources",
        put("spec.template.resources.limits", {"nvidia.com/gpu": 8}),
        "spec.template.resources",
        ("nvidia.com/gpu", "tensorParallelSize"),
    ),
    BadInput(
        "own-label",
        put("spec.template.labels", {"sglpool.io/pool": "x"}),
        "spec.template.labels",
        ("sglpool.io/", "sglpool writes them"),
    ),
    BadInput(
        "app-label",
        put("spec.template.labels", {"app.kubernetes.io/name": "x"}),
        "spec.template.labels",
        ("app.kubernetes.io/", "sglpool writes them"),
    ),
    BadInput(
        "label-value",
        put("spec.template.labels", {"team": "the coders"}),
        "spec.template.labels.team",
        ("'the coders'",),
        ("should match",),
    ),
    BadInput("label-key", put("spec.template.labels", {"my team": "x"}), "spec.template.labels", ("letters, digits",)),
    BadInput(
        "node-selector-value",
        put("spec.template.nodeSelector", {"rack": "a/b"}),
        "spec.template.nodeSelector.rack",
        ("'a/b'",),
        ("should match",),
    ),
    BadInput(
        "toleration-effect",
        put("spec.template.tolerations", [{"key": "a", "effect": "Never"}]),
        "spec.template.tolerations[0].effect",
        ("'NoSchedule'",),
        ("Unsupported value",),
    ),
    BadInput(
        "capability",
        put("spec.template.securityContext", {"capabilities": {"add": ["sys_nice"]}}),
        "spec.template.securityContext.capabilities.add[0]",
        ("'sys_nice'",),
        ("should match",),
    ),
    BadInput(
        "valkey-ca-without-tls",
        put(
            "spec.router.sessionStore",
            {"valkey": {"url": "valkey://sessions:6379", "caSecret": {"name": "sessions", "key": "ca.crt"}}},
        ),
        "spec.router.sessionStore.valkey.caSecret",
        ("caSecret", "valkeys://"),
    ),
    BadInput(
        "valkey-url",
        put("spec.router.sessionStore", {"valkey": {"url": "sessions:6379"}}),
        "spec.router.sessionStore.valkey.url",
        ("'sessions:6379'", "valkey://"),
        ("should match",),
    ),
    BadInput(
        "two-session-stores",
        put("spec.router.sessionStore", {"valkey": {"url": "redis://sessions:6379"}, "managed": {}}),
        "spec.router.sessionStore",
        ("exactly one of valkey", "managed"),
    ),
    BadInput(
        "tiny-session-store",
        put("spec.router.sessionStore", {"managed": {"memory": "256"}}),
        "spec.router.sessionStore.managed.memory",
        ("at least 16Mi",),
    ),
    BadInput(
        "prometheus-url",
        both(
            put("spec.replicas", None),
            put("spec.autoscaling", {"maxReplicas": 2, "metrics": {"prometheus": {"url": "prometheus:9090"}}}),
        ),
        "spec.autoscaling.metrics.prometheus.url",
        ("'prometheus:9090'", "http"),
        ("should match",),
    ),
)
REFUSED = {case.id: case for case in _REFUSED}
"""What the API server and `sglpool plan` both refuse."""

_INFEASIBLE = (
    BadInput(
        "unknown-profile",
        put("spec.model.profile", "kimi-k2.6-nvfp"),
        "UnknownProfile",
        ("spec.model.profile", "did you mean kimi-k2.6-nvfp4", "geometry"),
    ),
    BadInput(
        "unknown-gpu",
        put("spec.gpus.1.type", "B400"),
        "UnknownGPUType",
        ("spec.gpus[1].type", "B400", "Known: B200, B300, H200"),
    ),
    BadInput(
        "kv-dtype-refused",
        put("spec.kvCache.dtype", "fp8_e5m2"),
        "KVDtypeRefused",
        ("kvCache.dtype fp8_e5m2", "B200", "fp8_e4m3"),
    ),
    BadInput(
        "hicache-over-node",
        put("spec.kvCache.hiCache.size", "3T"),
        "HostMemoryExceeded",
        ("host memory", "B200 node", "hiCache.size"),
    ),
    BadInput(
        "hicache-under-a-gigabyte-a-rank",
        put("spec.kvCache.hiCache.size", "2G"),
        "HiCacheTooSmall",
        ("1 GB", "each of the 4 ranks"),
    ),
    BadInput(
        "weights-too-large",
        put("spec.tensorParallelSize", 2),
        "WeightsExceedHBM",
        ("weights a GPU", "tensorParallelSize 4"),
    ),
    BadInput(
        "context-over-model",
        put("spec.model.contextLength", 1_000_000),
        "ContextExceedsModel",
        ("contextLength 1,000,000", "262,144"),
    ),
    BadInput(
        "target-over-kv",
        put("spec.gpus.0", {"type": "B200", "memFractionStaticPercent": 90, "targetRunningRequests": 40}),
        "KVCapacityExceeded",
        ("targetRunningRequests 40", "KV tokens"),
    ),
    BadInput(
        "memory-limit-under-guard",
        both(
            put("spec.gpus.0.memFractionStaticPercent", 90), put("spec.template.resources.limits", {"memory": "600G"})
        ),
        "HostMemoryExceeded",
        ("memory limit of 600.0 GB", "start-up guard"),
    ),
)
INFEASIBLE = {case.id: case for case in _INFEASIBLE}
"""What only catalogue or arithmetic can know: `path` is the reason of condition Feasible."""
