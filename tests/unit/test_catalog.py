"""The catalogue: what it holds, how it answers names it does not know, and the checker of engine flags."""

import dataclasses
import itertools

import pytest

from sglpool.catalog import (
    AttentionKind,
    CatalogDataError,
    DSALayout,
    GPUType,
    GQALayout,
    MLALayout,
    ModelProfile,
    UnknownGPUType,
    UnknownProfile,
    check_argv,
    load_catalog,
    load_flags,
    model_from_geometry,
    parse_gpu,
)
from sglpool.catalog.loader import gpu_data, parse_model, read_data

CATALOG = load_catalog()
MODELS = {model.name: model for model in CATALOG.models}


def test_it_knows_the_models_and_gpus_that_pools_name():
    assert set(MODELS) == {
        "kimi-k2.5-nvfp4",
        "kimi-k2.6-nvfp4",
        "deepseek-v3.2",
        "deepseek-v3.2-nvfp4",
        "glm-5.1-nvfp4",
        "qwen3-coder-480b-fp8",
        "gpt-oss-120b",
        "minimax-m2",
    }
    assert [gpu.name for gpu in CATALOG.gpus] == ["B200", "B300", "H200"]


@pytest.mark.parametrize(
    ("name", "mib", "architecture", "labels"),
    [
        ("B200", 183_359, "sm_100", ("NVIDIA-B200",)),
        ("B300", 275_040, "sm_103", ("NVIDIA-B300-SXM6-AC", "NVIDIA-B300-SXM6-PC")),
        ("H200", 143_771, "sm_90", ("NVIDIA-H200",)),
    ],
)
def test_a_gpu_type_has_its_memory_and_its_exact_node_labels(name, mib, architecture, labels):
    gpu = CATALOG.gpu(name)
    assert (gpu.memory_mib, gpu.architecture, gpu.node_label_values) == (mib, architecture, labels)
    assert gpu.node_label_key == "nvidia.com/gpu.product"
    assert gpu.gpus_per_node == 8


def test_only_constants_that_were_read_count_as_measured():
    assert {gpu.name for gpu in CATALOG.gpus if gpu.measured} == {"H200"}


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "mxfp8", "nvfp4"])
@pytest.mark.parametrize("gpu", ["B200", "B300"])
def test_blackwell_mla_kernels_take_two_kv_dtypes_only(gpu, dtype):
    blackwell = CATALOG.gpu(gpu)
    assert blackwell.accepts(AttentionKind.MLA, "fp8_e4m3")
    assert blackwell.accepts(AttentionKind.MLA, "bf16")
    assert not blackwell.accepts(AttentionKind.MLA, dtype)


@pytest.mark.parametrize(
    ("model", "dtype", "tensor_parallel_size", "expected"),
    [
        # MLA: whole on every rank, 61 x 576.
        ("kimi-k2.6-nvfp4", "fp8_e4m3", 1, 35_136),
        ("kimi-k2.6-nvfp4", "fp8_e4m3", 8, 35_136),
        ("kimi-k2.6-nvfp4", "bf16", 4, 70_272),
        # DSA: 656 B a layer in fp8.
        ("deepseek-v3.2", "fp8_e4m3", 8, 61 * 656),
        ("deepseek-v3.2", "bf16", 8, 70_272),
        ("glm-5.1-nvfp4", "fp8_e4m3", 4, 78 * 656),
        # GQA: 62 x 2 x 8 x 128 x 2, divided by the ranks.
        ("qwen3-coder-480b-fp8", "bf16", 1, 253_952),
        ("qwen3-coder-480b-fp8", "bf16", 4, 63_488),
        ("minimax-m2", "fp8_e4m3", 8, 15_872),
        # Half of 36 layers have windows and a pool of 80%: 18 x 2048 x 1.8.
        ("gpt-oss-120b", "bf16", 1, 66_356),
    ],
)
def test_bytes_of_a_token_on_a_rank(model, dtype, tensor_parallel_size, expected):
    layout = MODELS[model].layout
    assert layout.bytes_per_token_per_rank(dtype, tensor_parallel_size) == expected


def test_an_indexer_is_counted_beside_the_kv():
    assert MODELS["deepseek-v3.2"].layout.indexer_bytes_per_token_per_rank() == 61 * 132
    assert MODELS["kimi-k2.6-nvfp4"].layout.indexer_bytes_per_token_per_rank() == 0


def test_gqa_heads_are_never_divided_below_one_a_rank():
    layout = GQALayout(layers=1, kv_heads=2, head_dim=128)
    assert layout.bytes_per_token_per_rank("bf16", 2) == layout.bytes_per_token_per_rank("bf16", 8) == 512


def test_an_unknown_kv_dtype_has_no_width():
    with pytest.raises(ValueError, match=r"'fp8' is unknown; use one of bf16, fp8_e4m3"):
        MLALayout(layers=1, kv_lora_rank=512, rope_head_dim=64).bytes_per_token_per_rank("fp8", 1)


@pytest.mark.parametrize(
    "layout",
    [
        MLALayout(layers=61, kv_lora_rank=512, rope_head_dim=64),
        DSALayout(layers=61, kv_lora_rank=512, rope_head_dim=64),
        GQALayout(layers=36, kv_heads=8, head_dim=64),
    ],
)
def test_one_layer_costs_its_share(layout):
    whole = layout.bytes_per_token_per_rank("bf16", 4)
    assert layout.one_layer().bytes_per_token_per_rank("bf16", 4) * layout.layers == whole


def test_the_dflash_draft_of_kimi_comes_with_what_it_needs():
    model = MODELS["kimi-k2.6-nvfp4"]
    draft = model.draft("dflash")
    assert draft is not None
    assert draft.layout.bytes_per_token_per_rank("bf16", 4) == 6_144
    assert (draft.draft_tokens, draft.quantization, draft.kv_dtype) == (8, "unquant", "bf16")
    assert model.draft("EAGLE3") is None


def test_a_typing_error_in_a_profile_is_answered_with_the_likely_names():
    with pytest.raises(UnknownProfile) as error:
        CATALOG.model("kimi-k26-nvfp4")
    assert error.value.close[0] == "kimi-k2.6-nvfp4"
    assert "did you mean kimi-k2.6-nvfp4" in str(error.value)
    assert "spec.model.geometry" in str(error.value)


def test_a_gpu_type_in_the_wrong_case_is_answered_with_the_right_one():
    with pytest.raises(UnknownGPUType, match=r"unknown GPU type 'b300'; did you mean B300\? Known: B200, B300, H200"):
        CATALOG.gpu("b300")


def test_a_name_without_a_neighbour_lists_what_exists():
    with pytest.raises(UnknownGPUType) as error:
        CATALOG.gpu("TPUv9-pod")
    assert error.value.close == ()
    assert error.value.known == ("B200", "B300", "H200")


GB200 = {
    "name": "GB200",
    "memory_mib": 189_471,
    "architecture": "sm_100",
    "node_label_values": ["NVIDIA-GB200"],
    "gpus_per_node": 4,
    "node_memory_bytes": 900 * 10**9,
    "context_bytes": 2**30,
    "nccl_bytes": 2**30,
    "default_mem_fraction_percent": 85,
    "kv_dtypes": {"MLA": ["fp8_e4m3"]},
    "measured": False,
    "source": "the operator of this cluster",
}


def test_the_chart_can_add_gpu_types_and_replace_known_ones():
    added = parse_gpu("values.yaml", GB200)
    corrected = parse_gpu("values.yaml", {**GB200, "name": "B200", "memory_mib": 180_000})
    catalog = CATALOG.with_gpus([added, corrected])
    assert catalog.gpu("GB200").gpus_per_node == 4
    assert catalog.gpu("B200").memory_mib == 180_000
    assert [gpu.name for gpu in catalog.gpus] == ["B200", "B300", "H200", "GB200"]
    assert CATALOG.gpu("B200").memory_mib == 183_359


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory_mib": "189471"}, r"values\.yaml: memory_mib must be of type int, not '189471'"),
        ({"measured": 1}, r"values\.yaml: measured must be of type bool"),
        ({"gpus_per_node": True}, r"values\.yaml: gpus_per_node must be of type int, not True"),
        ({"memory_mb": 1}, r"values\.yaml: unknown key memory_mb"),
        ({"node_label_values": [1]}, r"node_label_values must be a list of strings"),
        ({"kv_dtypes": {"MHA": ["bf16"]}}, r"values\.yaml: kv_dtypes\.MHA: attention is one of MLA, GQA, DSA"),
    ],
)
def test_a_wrong_gpu_type_names_file_and_key(change, message):
    with pytest.raises(CatalogDataError, match=message):
        parse_gpu("values.yaml", {**GB200, **change})


def test_a_missing_key_of_a_gpu_type_is_named():
    with pytest.raises(CatalogDataError, match=r"values\.yaml: source is missing"):
        parse_gpu("values.yaml", {key: value for key, value in GB200.items() if key != "source"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv": {"attention": "RNN", "layers": 1}}, r"RNN"),
        ({"kv": {"attention": "MLA", "layers": 1, "kv_heads": 8}}, r"kv_heads"),
        ({"flags": [["--a", "b", "c"]]}, r"one or two words"),
        ({"mem_fraction_percent": {"B200": 90}}, r"unknown key mem_fraction_percent"),
    ],
)
def test_a_wrong_model_profile_names_file_and_key(change, message):
    name, data = next(iter(read_data("models")))
    with pytest.raises(CatalogDataError, match=message):
        parse_model(name, {**data, **change})


def test_inline_geometry_makes_a_profile():
    model = model_from_geometry(
        name="mine", attention="GQA", layers=80, kv_heads=8, head_dim=128, weights_bytes=140 * 10**9
    )
    assert model.attention is AttentionKind.GQA
    assert model.layout.bytes_per_token_per_rank("bf16", 8) == 80 * 2 * 128 * 2
    assert model.drafts == ()


@pytest.mark.parametrize(
    ("attention", "message"),
    [
        ("MLA", "MLA needs kvLoraRank and ropeHeadDim"),
        ("GQA", "GQA needs kvHeads and headDim"),
        ("DSA", "'DSA' is not supported; use MLA or GQA, or a profile"),
    ],
)
def test_incomplete_geometry_says_what_is_missing(attention, message):
    with pytest.raises(ValueError, match=message):
        model_from_geometry(name="mine", attention=attention, layers=80, weights_bytes=1)


def _argv(model: ModelProfile, gpu: GPUType, tensor_parallel_size: int) -> list[str]:
    """Every flag that the catalogue suggests for one replica."""
    argv = ["--tp-size", str(tensor_parallel_size)]
    argv += ["--mem-fraction-static", f"0.{model.mem_fraction_percent(gpu)}"]
    argv += ["--max-running-requests", str(model.max_running_requests)]
    for flag, value in (
        ("--quantization", model.quantization),
        ("--tool-call-parser", model.tool_call_parser),
        ("--reasoning-parser", model.reasoning_parser),
        ("--chunked-prefill-size", model.chunked_prefill_tokens),
    ):
        argv += [] if value is None else [flag, str(value)]
    for dtype in gpu.kv_dtypes[model.attention][:1]:
        argv += ["--kv-cache-dtype", dtype]
    for draft in model.drafts[:1]:
        argv += ["--speculative-algorithm", draft.algorithm, "--speculative-draft-model-path", draft.repo]
        argv += ["--speculative-draft-model-quantization", draft.quantization]
        argv += ["--speculative-draft-kv-cache-dtype", draft.kv_dtype]
        argv += ["--speculative-draft-window-size", str(draft.window_tokens)]
        argv += ["--speculative-draft-attention-backend", str(draft.attention_backend)]
        argv += ["--speculative-attention-mode", str(draft.attention_mode)]
    for flag, value in model.recommended_flags(gpu, tensor_parallel_size):
        argv += [flag] if value is None else [flag, value]
    return argv


@pytest.mark.parametrize(
    ("model", "gpu", "tensor_parallel_size"),
    [
        pytest.param(model, gpu, size, id=f"{model.name}-{gpu.name}-tp{size}")
        for model, gpu, size in itertools.product(CATALOG.models, CATALOG.gpus, (1, 4, 8))
    ],
)
def test_every_suggested_flag_is_one_that_the_engine_takes(model, gpu, tensor_parallel_size):
    assert check_argv(_argv(model, gpu, tensor_parallel_size)) == []


def test_flags_depend_on_gpu_type_and_size():
    qwen = MODELS["qwen3-coder-480b-fp8"]
    b200 = CATALOG.gpu("B200")
    assert ("--ep-size", "2") in qwen.recommended_flags(b200, 8)
    assert ("--ep-size", "2") not in qwen.recommended_flags(b200, 4)
    assert ("--moe-runner-backend", "triton") not in qwen.recommended_flags(CATALOG.gpu("H200"), 8)


GOOD_ARGV = [
    "--model-path",
    "/models/kimi",
    "--tp-size",
    "4",
    "--kv-cache-dtype",
    "fp8_e4m3",
    "--hicache-size",
    "120",
    "--context-length",
    "256Ki",
    "--enable-hierarchical-cache",
    "--mem-fraction-static=0.9",
    "--chunked-prefill-size",
    "-1",
    "--log-requests-target",
    "stdout",
    "--extra-metric-labels",
    "{}",
    "--disable-cuda-graph",
    "--no-enable-tf32-matmul",
]


def test_a_good_argv_has_no_problems():
    assert check_argv(GOOD_ARGV) == []


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        ("--kv-cache-dtype fp8", "--kv-cache-dtype does not accept 'fp8'; choose from auto, bf16"),
        ("--hicache-size 120.5", "--hicache-size needs a whole number, not '120.5'"),
        ("--mem-fraction-static high", "--mem-fraction-static needs a number, not 'high'"),
        ("--context-length 128.5Ki", "--context-length needs a whole number, or one with k, M"),
        ("--extra-metric-labels {", "--extra-metric-labels needs JSON"),
        ("--tp 4", "--tp is an abbreviation; write --tp-size"),
        ("--cuda-graph-max-bs 8", "--cuda-graph-max-bs is ambiguous: --cuda-graph-max-bs-decode"),
        ("--enable-turbo", "SGLang 0.5.23 has no flag --enable-turbo"),
        ("--tp-size", "--tp-size needs a value"),
        ("--tp-size --enable-metrics", "--tp-size needs a value"),
        ("--log-requests-target", "--log-requests-target needs a value"),
        ("--enable-metrics=true", "--enable-metrics is a switch and takes no value"),
        ("--enable-metrics true", "'true' belongs to no flag"),
        ("--tp-size 4 --tp-size 8", "--tp-size is given more than once"),
        ("--tp-size 4 --tensor-parallel-size 8", "--tp-size and --tensor-parallel-size are the same option"),
    ],
)
def test_a_bad_argv_is_told_what_is_wrong(argv, problem):
    problems = check_argv(argv.split())
    assert any(problem in found for found in problems), problems


def test_each_problem_of_an_argv_is_reported():
    assert len(check_argv(["--tp", "4", "--kv-cache-dtype", "fp8", "--enable-turbo"])) == 4


def test_the_option_list_is_that_of_the_whole_engine():
    assert len({option.names for option in load_flags().options.values()}) == 532


def test_an_engine_version_without_an_option_list_is_refused():
    with pytest.raises(LookupError, match=r"no option list for SGLang 0\.4\.0"):
        load_flags("0.4.0")


class TestOverrides:
    """What an installation says of GPU types."""

    def test_a_known_type_keeps_what_is_not_said(self) -> None:
        before = load_catalog().gpu("B200")
        after = load_catalog().with_overrides({"B200": {"node_label_values": ["b200-sxm"]}}).gpu("B200")
        assert after == dataclasses.replace(before, node_label_values=("b200-sxm",))

    def test_a_new_type_is_known_from_then_on(self) -> None:
        data = gpu_data(load_catalog().gpu("H200")) | {"memory_mib": 1000}
        catalog = load_catalog().with_overrides({"L40S": data})
        assert catalog.gpu("L40S").memory_mib == 1000
        assert {gpu.name for gpu in load_catalog().gpus} < {gpu.name for gpu in catalog.gpus}

    @pytest.mark.parametrize(
        ("types", "named"),
        [
            ([], "mapping"),
            ({"B200": 1}, "B200"),
            ({"B200": {"node_labels": []}}, "node_labels"),
            ({"B200": {"node_label_values": "one"}}, "node_label_values"),
            ({"L40S": {"memory_mib": 1}}, "L40S"),
        ],
    )
    def test_a_wrong_one_is_named(self, types: object, named: str) -> None:
        with pytest.raises(CatalogDataError, match=named):
            load_catalog().with_overrides(types)
