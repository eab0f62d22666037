"""The engine's command line: accepted by SGLang's own flag list, each flag once, from spec and catalogue alone."""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path

import pytest
import yaml

from sglpool.api.flags import MANAGED_FLAGS
from sglpool.api.validate import InvalidPool, load_pool
from sglpool.catalog import check_argv, load_catalog, load_flags
from sglpool.render import engine_argv
from sglpool.render.argv import derived_flags
from sglpool.render.replica import replica_of
from support import pools

ROOT = Path(__file__).parents[2]
POOL_FILES = sorted([*(ROOT / "manifests/samples").glob("*.yaml"), *(ROOT / "tests/golden/pools").glob("*.yaml")])
CATALOG = load_catalog()
COMBINATIONS = list(product((m.name for m in CATALOG.models), (g.name for g in CATALOG.gpus), (1, 2, 4, 8)))

# Flags of a draft profile: recommendations too, though they have attributes of their own.
DRAFT_RECOMMENDATIONS = {
    "--speculative-num-steps",
    "--speculative-eagle-topk",
    "--speculative-draft-window-size",
    "--speculative-draft-attention-backend",
    "--speculative-attention-mode",
}


def argv_of(changes: pools.Json | None = None, *, gpu: int = 0) -> tuple[str, ...]:
    pool = pools.pool(changes)
    return engine_argv(pool, pools.size(pool)[gpu])


def flags_of(argv: tuple[str, ...]) -> list[str]:
    return [word.partition("=")[0] for word in argv if word.startswith("--")]


def value_of(argv: tuple[str, ...], flag: str) -> str | None:
    return argv[argv.index(flag) + 1] if flag in argv else None


@pytest.mark.parametrize("path", POOL_FILES, ids=lambda path: path.stem)
def test_samples_and_edge_cases_start_with_arguments_that_the_engine_accepts(path: Path) -> None:
    pool = load_pool(yaml.safe_load(path.read_text(encoding="utf-8")))
    for sized in pools.size(pool):
        assert sized.feasible, sized.message
        argv = engine_argv(pool, sized)
        assert check_argv(argv) == []
        assert [flag for flag, times in Counter(flags_of(argv)).items() if times > 1] == []


@pytest.mark.parametrize("profile", [model.name for model in CATALOG.models])
def test_every_catalogue_entry_is_accepted_on_every_gpu_it_fits(profile: str) -> None:
    accepted = 0
    for gpu, size in product((gpu.name for gpu in CATALOG.gpus), (1, 2, 4, 8)):
        algorithms = [draft.algorithm for draft in CATALOG.model(profile).drafts]
        for speculative in (None, {"algorithm": "NEXTN", "draftModel": None}, *({"algorithm": a} for a in algorithms)):
            changes = {
                "model": {"profile": profile},
                "tensorParallelSize": size,
                "gpus": [{"type": gpu}],
                "kvCache": {"hiCache": {"size": "100G"}},
                "speculative": speculative,
            }
            pool = pools.pool(changes)
            (sized,) = pools.size(pool)
            if sized.feasible:
                accepted += 1
                assert check_argv(engine_argv(pool, sized)) == [], (gpu, size, speculative)
    assert accepted > 0, f"{profile} fits nowhere"


def test_every_flag_of_sglpools_own_is_refused_in_extra_args() -> None:
    catalogue = {flag for m in CATALOG.models for g, n in product(CATALOG.gpus, (1, 2, 4, 8)) for flag, _ in
                 m.recommended_flags(g, n)}  # fmt: skip
    everything = {
        "engine": {"returnTokenIds": True, "chunkedPrefillSize": 4096},
        "kvCache": {"hiCache": {"size": "480G"}},
    }
    eagle = everything | {"speculative": {"algorithm": "EAGLE3", "draftTokens": 6}}
    emitted = {
        flag
        for changes in (everything, eagle)
        for pool in [pools.pool(changes)]
        for sized in pools.size(pool)
        for flag, _ in derived_flags(replica_of(pool, sized))
    }
    assert emitted - catalogue - DRAFT_RECOMMENDATIONS <= MANAGED_FLAGS.keys()
    with pytest.raises(InvalidPool, match="--hicache-size"):
        argv_of({"engine": {"extraArgs": ["--hicache-size=3"]}})


def test_no_recommendation_is_a_managed_flag_in_another_spelling() -> None:
    options = load_flags().options
    managed = {name for flag in MANAGED_FLAGS if flag in options for name in options[flag].names}
    for model, gpu, size in COMBINATIONS:
        recommended = CATALOG.model(model).recommended_flags(CATALOG.gpu(gpu), size)
        assert not {flag for flag, _ in recommended} & managed


@pytest.mark.parametrize(
    ("extra", "gone", "kept"),
    [
        (["--schedule-policy", "fcfs"], ["--schedule-policy", "lpm"], ["--attention-backend", "trtllm_mla"]),
        (["--schedule-policy=fcfs"], ["--schedule-policy", "lpm"], ["--attention-backend", "trtllm_mla"]),
        (["--speculative-draft-window-size", "2048"], ["4096"], ["--schedule-policy", "lpm"]),
    ],
)
def test_a_recommendation_gives_way_to_the_users_own_flag(extra: list[str], gone: list[str], kept: list[str]) -> None:
    argv = argv_of({"engine": {"extraArgs": extra}})
    assert list(argv[-len(extra) :]) == extra
    before = argv[: -len(extra)]
    assert " ".join(gone) not in " ".join(before)
    assert " ".join(kept) in " ".join(before)
    assert check_argv(argv) == []


def test_a_recommendation_gives_way_to_another_spelling_of_the_same_option() -> None:
    changes = {
        "model": {"profile": "minimax-m2"},
        "tensorParallelSize": 8,
        "speculative": None,
        "kvCache": {"hiCache": None},
    }
    assert value_of(argv_of(changes), "--ep-size") == "8"
    argv = argv_of({**changes, "engine": {"extraArgs": ["--expert-parallel-size", "4"]}})
    assert "--ep-size" not in argv
    assert check_argv(argv) == []


def test_kimi_on_b200_gets_what_the_design_calculated() -> None:
    argv = argv_of({"gpus": [{"type": "B200", "memFractionStaticPercent": 90}]})
    assert value_of(argv, "--hicache-size") == "102"
    assert value_of(argv, "--mem-fraction-static") == "0.90"
    assert value_of(argv, "--max-running-requests") == "12"
    assert value_of(argv, "--speculative-draft-model-quantization") == "unquant"
    assert "--speculative-num-steps" not in argv


def test_no_hicache_and_no_speculation_means_no_such_flags() -> None:
    argv = argv_of({"kvCache": {"hiCache": None}, "speculative": None})
    assert not [flag for flag in argv if "hicache" in flag or "hierarchical" in flag or "speculative" in flag]


def test_an_eagle_draft_is_a_chain_of_one_token_a_step() -> None:
    argv = argv_of({"speculative": {"algorithm": "EAGLE3", "draftTokens": 6}}, gpu=1)
    assert value_of(argv, "--speculative-num-steps") == "5"
    assert value_of(argv, "--speculative-eagle-topk") == "1"
    assert value_of(argv, "--speculative-num-draft-tokens") == "6"


def test_nextn_keeps_the_models_own_quantization() -> None:
    argv = argv_of({"speculative": {"algorithm": "NEXTN", "draftModel": None}}, gpu=1)
    assert value_of(argv, "--speculative-algorithm") == "NEXTN"
    assert "--speculative-draft-model-quantization" not in argv
    assert "--speculative-draft-model-path" not in argv


def test_targets_and_load_change_no_argument() -> None:
    changed = {
        "load": {"tokensPerRequest": 50_000},
        "gpus": [{"type": "B200", "targetRunningRequests": 2, "maxReplicas": 4}, {"type": "B300"}],
        "replicas": 3,
    }
    assert argv_of(changed) == argv_of()


def test_an_unknown_profile_is_not_rendered() -> None:
    pool = pools.pool({"model": {"profile": "kimi-k2.6-nvpf4"}})
    with pytest.raises(ValueError, match=r"serving/kimi: B200 cannot be rendered \(UnknownProfile: .*kimi-k2.6-nvfp4"):
        engine_argv(pool, pools.size(pool)[0])
