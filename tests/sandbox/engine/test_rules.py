"""What SGLang resolves between flags, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sglpool.sandbox.engine.modelfiles import ConfigError
from sglpool.sandbox.engine.rules import Resolved, RuleError, resolve

from .startup_inputs import B200, GQA_CONFIG, LITE_CONFIG, machine, make_draft, make_model, parsed

DSA = {**LITE_CONFIG, "architectures": ["DeepseekV32ForCausalLM"], "index_head_dim": 128}
DFLASH = ("--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", "{draft}")
ATTENTION_DP = ("--tp-size", "8", "--attn-dp-size", "4")


@pytest.fixture
def run(tmp_path: Path) -> Any:
    draft = make_draft(tmp_path / "draft")

    def resolved(*words: str, config: dict[str, Any] = LITE_CONFIG, gpu: dict[str, Any] = B200) -> Resolved:
        model = make_model(tmp_path / "model", config)
        return resolve(parsed(model, *(word.format(draft=draft) for word in words)), machine(tmp_path, **gpu))

    return resolved


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--enable-hierarchical-cache", "--disable-radix-cache"), "mutually exclusive"),
        (("--enable-hierarchical-cache", "--enable-lmcache"), "mutually exclusive"),
        (("--enable-hierarchical-cache", "--hicache-host-memory-mode", "buffer_only"), "hicache-storage-backend"),
        (("--speculative-algorithm", "DFLASH"), "requires setting --speculative-draft-model-path"),
        (("--speculative-algorithm", "DFLASHX"), "Unknown speculative algorithm name: DFLASHX"),
        ((*DFLASH, "--pp-size", "2"), "only supports pp_size == 1"),
        (
            (*DFLASH, "--speculative-num-draft-tokens", "8", "--speculative-dflash-block-size", "16"),
            "they must match",
        ),
        ((*DFLASH, *ATTENTION_DP), "requires --enable-dp-lm-head"),
        (("--tp-size", "6", "--attn-dp-size", "4"), "must be divisible"),
        (("--dp-size", "2", "--tp-size", "4", "--attn-dp-size", "2"), "cannot be combined"),
        (("--kv-cache-dtype", "bfloat16"), "only supports kv-cache-dtype of fp8_e4m3, bf16, or auto, got bfloat16"),
        (("--kv-cache-dtype", "mxfp8"), "got mxfp8"),
        (("--kv-cache-dtype", "nvfp4"), "got nvfp4"),
        (("--chunked-prefill-size", "1000"), "chunked_prefill_size must be divisible by page_size"),
        (("--context-length", "200000"), "greater than the derived context_length (163840)"),
        (("--quantization", "modelopt_fp4"), "holds no quantized weights"),
        (("--mem-fraction-static", "1.5"), "mem_fraction_static must be between 0 and 1"),
    ],
)
def test_a_combination_is_refused(run: Any, words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(RuleError) as refused:
        run(*words)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), {"attention_backend": "trtllm_mla", "page_size": 64, "chunked_prefill_size": 16384}),
        ((), {"kv_cache_dtype": "bf16", "max_running_requests": None, "max_queued_requests": None}),
        (("--page-size", "32"), {"page_size": 32}),
        (("--page-size", "128"), {"page_size": 64}),
        (("--kv-cache-dtype", "fp8_e4m3"), {"kv_cache_dtype": "fp8_e4m3"}),
        (DFLASH, {"max_running_requests": 48, "speculative_num_draft_tokens": 8, "speculative_num_steps": 1}),
        (DFLASH, {"speculative_draft_attention_backend": "flashinfer", "speculative_draft_model_revision": "main"}),
        ((*DFLASH, "--max-running-requests", "12"), {"max_running_requests": 12}),
        (("--speculative-algorithm", "nextn"), {"speculative_algorithm": "EAGLE", "max_running_requests": 48}),
        (("--speculative-algorithm", "ngram"), {"speculative_algorithm": "NGRAM", "max_running_requests": None}),
        (ATTENTION_DP, {"chunked_prefill_size": 4096}),
        (("--tp-size", "4", "--dp-size", "4", "--enable-dp-attention"), {"attn_dp_size": 4, "dp_size": 1}),
        ((*DFLASH, *ATTENTION_DP, "--enable-dp-lm-head"), {"attn_dp_size": 4}),
        (
            ("--enable-hierarchical-cache", "--hicache-io-backend", "direct"),
            {"hicache_mem_layout": "page_first_direct", "hicache_io_backend": "direct"},
        ),
        (
            ("--enable-hierarchical-cache", "--hicache-mem-layout", "page_first_direct"),
            {"hicache_mem_layout": "page_first_direct", "hicache_io_backend": "direct"},
        ),
    ],
)
def test_defaults_are_rewritten_as_sglang_does(run: Any, words: tuple[str, ...], expected: dict[str, Any]) -> None:
    args = run(*words).args
    assert {name: args[name] for name in expected} == expected


def test_an_h200_keeps_page_size_one_and_smaller_chunks(run: Any) -> None:
    args = run("--attention-backend", "triton", gpu={}).args
    assert (args["page_size"], args["chunked_prefill_size"]) == (1, 8192)


def test_an_h200_refuses_blackwells_kernels(run: Any) -> None:
    with pytest.raises(RuleError, match="only supported on Blackwell"):
        run("--attention-backend", "trtllm_mla", gpu={})


def test_a_sparse_attention_model_takes_fp8_by_itself_on_blackwell(run: Any) -> None:
    assert run(config=DSA).args["kv_cache_dtype"] == "fp8_e4m3"


def test_a_checkpoint_that_declares_fp8_kv_gets_it(run: Any) -> None:
    quantized = {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}
    resolved = run("--quantization", "modelopt_fp4", config={**LITE_CONFIG, "quantization_config": quantized})
    assert resolved.args["kv_cache_dtype"] == "fp8_e4m3"


def test_a_plain_draft_beside_a_quantized_model_needs_unquant(run: Any) -> None:
    config = {**LITE_CONFIG, "quantization_config": {"quant_method": "modelopt"}}
    with pytest.raises(RuleError, match="`unquant`"):
        run("--quantization", "modelopt_fp4", *DFLASH, config=config)


def test_unquant_lets_it_pass(run: Any) -> None:
    config = {**LITE_CONFIG, "quantization_config": {"quant_method": "modelopt"}}
    words = ("--quantization", "modelopt_fp4", *DFLASH, "--speculative-draft-model-quantization", "unquant")
    assert run(*words, config=config).draft is not None


def test_another_quantization_than_the_checkpoints_is_refused(run: Any) -> None:
    with pytest.raises(RuleError, match="does not match"):
        run(
            "--quantization",
            "modelopt_fp4",
            config={**LITE_CONFIG, "quantization_config": {"quant_method": "compressed-tensors"}},
        )


def test_grouped_query_attention_has_trtllm_mha_on_blackwell(run: Any) -> None:
    args = run(config=GQA_CONFIG).args
    assert (args["attention_backend"], args["page_size"]) == ("trtllm_mha", 64)


def test_custom_code_needs_trust(run: Any) -> None:
    with pytest.raises(RuleError, match="trust_remote_code=True"):
        run(config={**LITE_CONFIG, "model_type": "kimi_k25", "auto_map": {"AutoConfig": "a.B"}})


def test_a_longer_context_passes_when_the_environment_allows_it(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "1")
    assert run("--context-length", "200000").context_tokens == 200_000


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda folder: (folder / "config.json").unlink(), "does not appear to have a file named config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "is not a valid JSON file"),
        (lambda folder: (folder / "config.json").write_text('{"a": 1}'), "No model architectures"),
        (lambda folder: (folder / "config.json").write_text('{"architectures": ["X"]}'), "num_hidden_layers"),
    ],
)
def test_a_broken_configuration_is_refused(tmp_path: Path, damage: Any, sentence: str) -> None:
    model = make_model(tmp_path / "model")
    damage(model)
    with pytest.raises(ConfigError) as refused:
        resolve(parsed(model), machine(tmp_path))
    assert sentence in str(refused.value)


def test_a_missing_folder_is_taken_for_a_repository_id(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Repo id must be in the form"):
        resolve(parsed(tmp_path / "nowhere"), machine(tmp_path))
