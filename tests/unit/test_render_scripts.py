"""The pure half of the engine's scripts: what goes into the ConfigMap, deadlines, caches, and file checks."""

from __future__ import annotations

import ast
import importlib
import json
import struct
import sys
import zlib
from dataclasses import replace
from importlib import resources

import pytest

from sglpool.render import deadlines, paths, scripts
from sglpool.render.scripts import EngineScriptConfig, WarmUp, WeightsSource

MODEL = WeightsSource(
    role="model",
    kind="huggingFace",
    path=paths.model_cache_dir(repo="nvidia/Kimi-K2.6-NVFP4", revision="a" * 40),
    repo="nvidia/Kimi-K2.6-NVFP4",
    revision="a" * 40,
)
CONFIG = EngineScriptConfig(served_model_name="kimi", weights=(MODEL,))


def test_the_config_map_holds_every_script_and_the_settings() -> None:
    folder = resources.files("sglpool.render") / "templates"
    on_disk = {entry.name for entry in folder.iterdir() if entry.is_file()}
    assert set(scripts.engine_files(CONFIG)) == on_disk | {"config.json"}


def test_settings_carry_the_names_of_the_dataclasses() -> None:
    settings = json.loads(scripts.engine_files(CONFIG)["config.json"])
    assert settings["served_model_name"] == "kimi"
    assert settings["port"] == 30000
    assert settings["drain_s"] == 120
    assert settings["warm_up"]["prompt_tokens"] == 32_000
    assert settings["liveness"]["failures"] == 6
    assert settings["weights"][0]["repo"] == "nvidia/Kimi-K2.6-NVFP4"


def test_equal_settings_give_equal_bytes_and_only_settings_differ() -> None:
    one, same = scripts.engine_files(CONFIG), scripts.engine_files(replace(CONFIG))
    assert one == same
    assert list(one) == sorted(one)
    other = scripts.engine_files(replace(CONFIG, port=31000))
    assert [name for name in one if one[name] != other[name]] == ["config.json"]


def test_the_config_map_is_far_below_its_limit() -> None:
    size = sum(len(text.encode()) for text in scripts.engine_files(CONFIG).values())
    assert size < 128 * 1024


@pytest.mark.parametrize("name", [name for name in scripts.FILE_NAMES if name.endswith(".py")])
def test_scripts_need_nothing_but_python_3_10(name: str) -> None:
    tree = ast.parse(scripts.engine_files(CONFIG)[name], feature_version=(3, 10))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    siblings = {sibling.removesuffix(".py") for sibling in scripts.FILE_NAMES}
    foreign = {
        module
        for module in imported - siblings - {"sglpool.render.templates"}
        if module.partition(".")[0] not in sys.stdlib_module_names
    }
    assert foreign == set()
    # The script's folder comes first on its path, so a name of the standard library would be hidden.
    assert siblings.isdisjoint(sys.stdlib_module_names)


def test_commands_point_into_the_mounted_folder() -> None:
    files = scripts.engine_files(CONFIG)
    commands = (
        scripts.LAUNCH_COMMAND,
        scripts.LIVENESS_COMMAND,
        scripts.WEIGHTS_COMMAND,
        scripts.PRESTOP_COMMAND,
    )
    for command in commands:
        script = next(part for part in command if part.startswith(paths.SCRIPTS_DIR))
        assert script.removeprefix(f"{paths.SCRIPTS_DIR}/") in files
    assert scripts.STARTUP_COMMAND == ("test", "-f", "/run/sglpool/warm")


def test_one_constant_is_behind_every_deadline() -> None:
    assert deadlines.termination_grace_period_s() == 155
    assert deadlines.termination_grace_period_s(300) == 335
    assert CONFIG.drain_s == deadlines.DRAIN_S
    assert scripts.PRESTOP_COMMAND[2] == "5"


def test_a_restart_by_liveness_ends_before_the_kubelet_kills() -> None:
    assert deadlines.HUNG_DRAIN_S < deadlines.LIVENESS_KILL_GRACE_S
    assert deadlines.liveness_timeout_s() > deadlines.LIVENESS_CHAT_S + deadlines.LIVENESS_DUMP_S


@pytest.mark.parametrize("period_s", [1, 7, 10])
def test_the_launcher_gives_up_before_the_startup_probe(period_s: int) -> None:
    budget_s = deadlines.startup_failure_threshold(period_s=period_s) * period_s
    assert budget_s >= deadlines.READY_TIMEOUT_S + deadlines.WARM_UP_TIMEOUT_S + deadlines.GRACE_MARGIN_S
    assert budget_s - period_s < deadlines.READY_TIMEOUT_S + deadlines.WARM_UP_TIMEOUT_S + deadlines.GRACE_MARGIN_S


def test_every_compile_cache_lies_in_one_folder_of_its_own() -> None:
    env = dict(scripts.compile_cache_env(paths.CACHE_DIR, "abc-sm100"))
    assert env["TRITON_CACHE_DIR"] == "/var/lib/sglpool/compiled/abc-sm100/triton"
    assert all(value.startswith("/var/lib/sglpool/compiled/abc-sm100/") for value in env.values())
    assert len(set(env.values())) == len(env) == 10


def test_the_compile_cache_key_follows_image_and_architecture() -> None:
    digest = "0123456789abcdef" * 4
    pinned = scripts.compile_cache_key(image=f"lmsysorg/sglang:v1@sha256:{digest}", gpu_architecture="sm100")
    moved = scripts.compile_cache_key(image=f"mirror/sglang@sha256:{digest}", gpu_architecture="sm100")
    assert pinned == moved == "0123456789abcdef-sm100"
    tags = {
        scripts.compile_cache_key(image=image, gpu_architecture=arch)
        for image in ("lmsysorg/sglang:v0.5.23", "lmsysorg/sglang:v0.5.24")
        for arch in ("sm100", "sm103")
    }
    assert len(tags) == 4
    assert all("/" not in key and ":" not in key for key in tags)


def test_a_model_has_its_folder_by_repository_and_commit() -> None:
    assert MODEL.path == f"/var/lib/sglpool/models/nvidia/Kimi-K2.6-NVFP4/{'a' * 40}"


@pytest.mark.parametrize(
    ("repo", "revision"),
    [("../../etc", "a"), ("/etc", "a"), ("a/b", "../c"), ("a/b", "x/y"), ("", "a"), ("a/b", "")],
)
def test_no_repository_leaves_the_cache(repo: str, revision: str) -> None:
    with pytest.raises(ValueError, match="does not name a folder of the cache"):
        paths.model_cache_dir(repo=repo, revision=revision)


def test_warm_up_prompts_fit_a_short_context() -> None:
    assert WarmUp().within(262_144).prompt_tokens == 32_000
    assert WarmUp().within(8_192).prompt_tokens == 4_096


@pytest.mark.parametrize(
    ("recorded", "model", "same"),
    [
        ("moonshotai/Kimi-K2.6", "nvidia/Kimi-K2.6-NVFP4", True),
        ("moonshotai/Kimi-K2.6", "moonshotai/Kimi-K2.6", True),
        ("/models/kimi_k2.6/", "moonshotai/Kimi-K2.6", True),
        ("moonshotai/Kimi-K2.5", "moonshotai/Kimi-K2.6", False),
        ("zai-org/GLM-5.1", "moonshotai/Kimi-K2.6", False),
        ("", "moonshotai/Kimi-K2.6", False),
    ],
)
def test_a_quantized_copy_is_the_same_model(recorded: str, model: str, same: bool) -> None:
    weight_files = importlib.import_module("sglpool.render.templates.weight_files")
    assert weight_files.same_model(recorded, model) is same


def test_the_warm_up_image_is_a_real_png(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(resources.files("sglpool.render") / "templates"))
    png = importlib.import_module("warm_up").grey_png(224)
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    position, pixels, kinds = 8, b"", []
    while position < len(png):
        (length,) = struct.unpack(">I", png[position : position + 4])
        kind, data = png[position + 4 : position + 8], png[position + 8 : position + 8 + length]
        (checksum,) = struct.unpack(">I", png[position + 8 + length : position + 12 + length])
        assert checksum == zlib.crc32(kind + data)
        kinds.append(kind)
        pixels += zlib.decompress(data) if kind == b"IDAT" else b""
        position += 12 + length
    assert kinds == [b"IHDR", b"IDAT", b"IEND"]
    assert len(pixels) == 224 * (1 + 3 * 224)
