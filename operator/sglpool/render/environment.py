"""Environment variables of the containers: each name once, the user's value before ours.

Secrets appear as references only. Not here: anything that has a flag.
"""

from __future__ import annotations

from sglpool.api.base import Manifest, SecretKey
from sglpool.api.engine import EnvVar
from sglpool.render import paths, scripts
from sglpool.render.replica import Replica

KEEP_ALIVE_S = 300
"""SGLang closes idle connections after 5 s; a router keeps them longer, and would then write into a closed one."""

ENGINE_DEFAULTS = {
    # The weights are in place: an engine that asks the hub would hang where there is no way out.
    "HF_HUB_OFFLINE": "1",
    "SGLANG_TIMEOUT_KEEP_ALIVE": str(KEEP_ALIVE_S),
    # URLs in prompts come from users; an engine that fetched them would be a way into the cluster.
    "SGLANG_VLM_MEDIA_URL_FETCH_ENABLED": "false",
    "SGLANG_OPENAI_MEDIA_URL_FETCH_ENABLED": "false",
}


def cache_environment(replica: Replica) -> list[tuple[str, str]]:
    """Where compiled kernels go: one folder per image and GPU architecture in the cache volume."""
    key = scripts.compile_cache_key(image=replica.pool.spec.engine.image, gpu_architecture=replica.gpu.architecture)
    return scripts.compile_cache_env(paths.CACHE_DIR, key)


def engine_environment(replica: Replica) -> list[Manifest]:
    """Variables of the engine container."""
    own = [_plain(name, value) for name, value in (*ENGINE_DEFAULTS.items(), *cache_environment(replica))]
    return _merged(own, replica.pool.spec.engine.env)


def weights_environment(replica: Replica) -> list[Manifest]:
    """Variables of the weights container: the user's (proxies, mirrors), and the token, which only it gets.

    What replaces one of the engine's own settings is not for it: HF_HUB_OFFLINE would stop the download.
    """
    token = _token_secret(replica)
    own = [] if token is None else [_secret("HF_TOKEN", token)]
    engine_only = ENGINE_DEFAULTS.keys() | {name for name, _ in cache_environment(replica)}
    return _merged(own, tuple(v for v in replica.pool.spec.engine.env if v.name not in engine_only))


def _token_secret(replica: Replica) -> SecretKey | None:
    speculative = replica.pool.spec.speculative
    sources = [replica.pool.spec.model.source]
    if speculative and speculative.draft_model:
        sources.append(speculative.draft_model.source)
    return next((s.hugging_face.token_secret for s in sources if s.hugging_face and s.hugging_face.token_secret), None)


def _merged(own: list[Manifest], given: tuple[EnvVar, ...]) -> list[Manifest]:
    """Ours that the user does not replace, then the user's."""
    replaced = {variable.name for variable in given}
    return [variable for variable in own if variable["name"] not in replaced] + [_variable(v) for v in given]


def _variable(variable: EnvVar) -> Manifest:
    if variable.value_from is not None:
        return _secret(variable.name, variable.value_from.secret_key_ref)
    return _plain(variable.name, variable.value or "")


def _plain(name: str, value: str) -> Manifest:
    return {"name": name, "value": value}


def _secret(name: str, secret: SecretKey) -> Manifest:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret.name, "key": secret.key}}}
