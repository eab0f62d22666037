"""Reuse of prefixes over HBM and host memory, as a real SGLang showed it (readings 4 and 6)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from contract.engine import exposition
from contract.engine.asking import completion, prompt, wait_idle
from support.engine_process import EngineProcess

PROMPT_TOKENS = 25_000
POOL_TOKENS = 60_000
HICACHE = ("--enable-hierarchical-cache", "--hicache-size", "8", "--max-total-tokens", str(POOL_TOKENS))


@pytest.fixture
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """An engine whose pool holds two of the prompts, and whose host pool holds all."""
    folder = tmp_path_factory.mktemp("hicache")
    with EngineProcess(folder, *HICACHE, "--skip-server-warmup", speed=200) as process:
        yield process.wait_ready()


class Asker:
    """Asks, and reads how the counters moved."""

    def __init__(self, engine: EngineProcess) -> None:
        self.engine = engine

    def cached_tokens(self, name: str) -> int:
        """Cached tokens of one more request with this prompt, as its usage says."""
        answer = self.engine.post("/v1/completions", completion(PROMPT_TOKENS, 1, name=name))
        assert answer.status == 200
        usage = answer.json()["usage"]
        assert usage["prompt_tokens"] == PROMPT_TOKENS
        wait_idle(self.engine)
        cached: int = usage["prompt_tokens_details"]["cached_tokens"]
        return cached

    def counter(self, name: str, **labels: str) -> float:
        """A counter of /metrics, 0 before it exists."""
        text = self.engine.get("/metrics").body.decode()
        return exposition.value(text, f"sglang:{name}", **labels) or 0.0


def test_prompts_come_back_cold_then_from_host_then_from_device(engine: EngineProcess) -> None:
    ask = Asker(engine)
    assert ask.counter("hicache_host_total_tokens") == pytest.approx(257_202, abs=1)
    assert ask.cached_tokens("1") == 0
    # Written through: the copy on the host is there before anything is evicted.
    assert ask.counter("hicache_backup_tokens_total") >= PROMPT_TOKENS
    assert ask.counter("evicted_tokens_total") == 0
    assert [ask.cached_tokens(name) for name in "234"] == [0, 0, 0]
    assert ask.counter("evicted_tokens_total") > 0

    assert ask.cached_tokens("1") == PROMPT_TOKENS - 1
    assert ask.counter("cached_tokens_total", cache_source="host") == PROMPT_TOKENS - 1
    assert ask.counter("load_back_tokens_total") == PROMPT_TOKENS - 1
    assert ask.cached_tokens("2") == PROMPT_TOKENS - 1
    assert ask.counter("cached_tokens_total", cache_source="host") == 2 * (PROMPT_TOKENS - 1)
    assert ask.counter("cached_tokens_total", cache_source="device") == 0

    assert ask.cached_tokens("1") == PROMPT_TOKENS - 1
    assert ask.counter("cached_tokens_total", cache_source="device") == PROMPT_TOKENS - 1
    assert ask.counter("cached_tokens_total", cache_source="host") == 2 * (PROMPT_TOKENS - 1)
    # Inclusive: the host holds all four, also what is on the device.
    assert ask.counter("hicache_host_used_tokens") >= 4 * PROMPT_TOKENS
    assert ask.counter("load_back_bytes_total") == ask.counter("load_back_tokens_total") * 31_104


def test_flushing_drops_both_tiers(engine: EngineProcess) -> None:
    ask = Asker(engine)
    assert ask.cached_tokens("1") == 0
    assert engine.post("/flush_cache", {}).status == 200
    assert ask.cached_tokens("1") == 0
    assert ask.counter("cached_tokens_total") == 0


def test_cached_prefixes_are_evictable_not_used(engine: EngineProcess) -> None:
    Asker(engine).cached_tokens("1")
    load = engine.load()
    assert (load["num_used_tokens"], load["token_usage"]) == (0, 0.0)
    text = engine.get("/metrics").body.decode()
    assert exposition.value(text, "sglang:max_total_num_tokens") == POOL_TOKENS


def test_the_next_turn_of_a_conversation_finds_the_last_one(engine: EngineProcess) -> None:
    first = [{"role": "user", "content": prompt(4000, name="c")}]
    body = {"model": "m", "messages": first, "max_tokens": 200, "ignore_eos": True}
    answer = engine.post("/v1/chat/completions", body).json()
    told = answer["usage"]
    reply = answer["choices"][0]["message"]["content"]
    wait_idle(engine)
    again = [*first, {"role": "assistant", "content": reply}, {"role": "user", "content": "go on"}]
    usage = engine.post("/v1/chat/completions", body | {"messages": again}).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= told["prompt_tokens"] + told["completion_tokens"] - 1
