"""The immutable ConfigMap with a revision's scripts and settings, named by its content.

A changed script is a new object and a new revision of the pods; old pods keep theirs. Not here: the scripts.
"""

from __future__ import annotations

from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.api.pool import Pool
from sglpool.render.environment import cache_environment
from sglpool.render.hashes import content_hash
from sglpool.render.metadata import child_metadata, engine_labels
from sglpool.render.replica import Replica, replica_of
from sglpool.render.scripts import EngineScriptConfig, WarmUp, engine_files
from sglpool.render.volumes import weights_sources
from sglpool.sizing.pools import SizedGPU


def launch_configmap(pool: Pool, sized: SizedGPU) -> Manifest:
    """Scripts and settings of the replicas of one GPU type.

    Raises:
        ValueError: The profile or the GPU type is not in the catalogue.
    """
    data = engine_files(script_config(replica_of(pool, sized)))
    name = names.launch_configmap_name(pool.name, content_hash(data))
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": child_metadata(pool, name=name, labels=engine_labels(pool, sized.entry.type)),
        "immutable": True,
        "data": data,
    }


def script_config(replica: Replica) -> EngineScriptConfig:
    """What the scripts of one replica kind need to know."""
    engine = replica.pool.spec.engine
    image = replica.model.vision if engine.warmup.image is None else engine.warmup.image
    warm_up = WarmUp(prompts=engine.warmup.prompts, prompt_tokens=engine.warmup.prompt_tokens, image=image)
    return EngineScriptConfig(
        served_model_name=replica.pool.spec.model.name,
        weights=weights_sources(replica),
        port=names.ENGINE_PORT,
        ready_timeout_s=engine.startup_timeout,
        warm_up=warm_up.within(replica.request.context_tokens),
        cache_dirs=tuple(folder for _, folder in cache_environment(replica)),
    )
