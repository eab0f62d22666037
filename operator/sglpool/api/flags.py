"""Engine flags that sglpool writes itself, and the field that sets each.

`engine.extraArgs` may not name one of them: two writers for one fact is how a node gets the wrong flag. Not here:
how they are rendered (`render.argv`).
"""

MANAGED_FLAGS: dict[str, str] = {
    "--model-path": "spec.model.source",
    "--model": "spec.model.source",
    "--revision": "spec.model.source.huggingFace.revision",
    "--served-model-name": "spec.model.name",
    "--context-length": "spec.model.contextLength",
    "--trust-remote-code": "spec.model.profile",
    "--quantization": "spec.model.profile",
    "--reasoning-parser": "spec.model.profile",
    "--tool-call-parser": "spec.model.profile",
    "--download-dir": "spec.model.source.cache",
    "--host": "sglpool itself",
    "--port": "sglpool itself",
    "--config": "the fields of spec",
    "--tp-size": "spec.tensorParallelSize",
    "--tensor-parallel-size": "spec.tensorParallelSize",
    "--tp": "spec.tensorParallelSize",
    "--dp-size": "spec.replicas or spec.autoscaling",
    "--data-parallel-size": "spec.replicas or spec.autoscaling",
    "--nnodes": "sglpool itself, a replica is one node",
    "--node-rank": "sglpool itself, a replica is one node",
    "--dist-init-addr": "sglpool itself, a replica is one node",
    "--nccl-init-addr": "sglpool itself, a replica is one node",
    "--base-gpu-id": "sglpool itself",
    "--kv-cache-dtype": "spec.kvCache.dtype",
    "--mem-fraction-static": "spec.gpus[].memFractionStaticPercent",
    "--max-running-requests": "spec.engine.maxRunningRequests",
    "--max-queued-requests": "spec.engine.maxQueuedRequests",
    "--max-total-tokens": "spec.gpus[].memFractionStaticPercent",
    "--chunked-prefill-size": "spec.engine.chunkedPrefillSize",
    "--disable-radix-cache": "sglpool itself, sessions live on this cache",
    "--enable-hierarchical-cache": "spec.kvCache.hiCache",
    "--enable-hicache": "spec.kvCache.hiCache",
    "--hicache-size": "spec.kvCache.hiCache.size",
    "--hicache-ratio": "spec.kvCache.hiCache.size",
    "--hicache-host-memory-fraction": "spec.kvCache.hiCache.size",
    "--hicache-write-policy": "spec.kvCache.hiCache.writePolicy",
    "--speculative-algorithm": "spec.speculative.algorithm",
    "--speculative-draft-model-path": "spec.speculative.draftModel",
    "--speculative-draft-model": "spec.speculative.draftModel",
    "--speculative-draft-model-revision": "spec.speculative.draftModel",
    "--speculative-draft-model-quantization": "spec.speculative.draftQuantization",
    "--speculative-draft-kv-cache-dtype": "spec.speculative.draftKVCacheDtype",
    "--speculative-num-draft-tokens": "spec.speculative.draftTokens",
    "--speculative-dflash-block-size": "spec.speculative.draftTokens",
    "--enable-metrics": "sglpool itself",
    "--enable-cache-report": "sglpool itself",
    "--stream-response-default-include-usage": "sglpool itself",
    "--skip-server-warmup": "spec.engine.warmup",
    "--log-requests": "sglpool itself",
    "--log-requests-level": "sglpool itself",
    "--return-input-ids": "spec.engine.returnTokenIds",
    "--return-output-ids": "spec.engine.returnTokenIds",
    "--weight-loader-drop-cache-after-load": "sglpool itself",
    "--api-key": "spec.router.auth",
    "--admin-api-key": "sglpool itself, the engine's ports are closed to all but the router",
}


def flag_of(argument: str) -> str:
    """The flag of one argument: `--tp-size=4` gives `--tp-size`."""
    return argument.partition("=")[0]


def managed_arguments(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the user's extra arguments that sglpool writes itself.

    SGLang takes any unambiguous beginning of a flag for the flag, so `--max-run` counts as `--max-running-requests`.
    """
    return tuple(flag for flag in map(flag_of, arguments) if managed_flag(flag) is not None)


def managed_flag(flag: str) -> str | None:
    """The managed flag that an argument names or abbreviates, None if it is not one."""
    if flag in MANAGED_FLAGS:
        return flag
    if not flag.startswith("--") or flag == "--":
        return None
    return next((known for known in MANAGED_FLAGS if known.startswith(flag)), None)
