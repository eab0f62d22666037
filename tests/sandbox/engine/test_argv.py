"""The simulated engine's parser accepts and refuses what SGLang's does."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglpool.catalog import load_flags
from sglpool.sandbox.engine import argv


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        argv.parse(words)
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_every_flag_of_the_list_can_be_given() -> None:
    parser = argv.build_parser()
    known = {name for action in parser._actions for name in action.option_strings}
    assert known == set(load_flags().options)


def test_defaults_are_sglangs() -> None:
    args = argv.parse(["--model-path", "m"])
    assert args["host"] == "127.0.0.1"
    assert args["port"] == 30000
    assert args["tp_size"] == 1
    assert args["max_running_requests"] is None
    assert args["enable_metrics"] is False
    assert args["max_prefill_tokens"] == 16384
    assert args["lora_strict_loading"] is None


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--tp", "4"], "tp_size", 4),
        (["--tensor-parallel-size", "4"], "tp_size", 4),
        (["--context-length", "128k"], "context_length", 128_000),
        (["--context-length", "128Ki"], "context_length", 131_072),
        (["--context-length", "1.5M"], "context_length", 1_500_000),
        (["--enable-hicache"], "enable_hierarchical_cache", True),
        (["--no-lora-strict-loading"], "lora_strict_loading", False),
        (["--log-requests-level", "0"], "log_requests_level", 0),
        (["--chunked-prefill-size", "-1"], "chunked_prefill_size", -1),
        (["--port=31000"], "port", 31000),
        (["--fp8-gemm-backend", "auto"], "fp8_gemm_runner_backend", "auto"),
        (["--uvicorn-access-log-exclude-prefixes", "/a", "/b"], "uvicorn_access_log_exclude_prefixes", ["/a", "/b"]),
    ],
)
def test_a_value_arrives_under_its_destination(words: list[str], name: str, value: object) -> None:
    assert argv.parse(["--model-path", "m", *words])[name] == value


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--model-path", "m", "--no-such-flag", "1"], "unrecognized arguments: --no-such-flag 1"),
        (["--model-path", "m", "--cuda-graph-max-bs", "8"], "ambiguous option: --cuda-graph-max-bs could match"),
        (["--model-path", "m", "--kv-cache-dtype", "fp8"], "argument --kv-cache-dtype: invalid choice: 'fp8'"),
        (["--model-path", "m", "--hicache-size", "120.5"], "argument --hicache-size: invalid int value: '120.5'"),
        (["--model-path", "m", "--context-length", "long"], "invalid human_readable_int value: 'long'"),
        (["--model-path", "m", "--tp-size"], "argument --tp-size/--tensor-parallel-size: expected one argument"),
        (["--tp-size", "4"], "the following arguments are required: --model-path/--model"),
    ],
)
def test_a_wrong_command_line_is_refused_in_argparses_words(
    capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    error = refusal(capsys, *words)
    assert "sglang serve: error: " in error
    assert sentence in error


def test_a_config_file_gives_flags_and_the_command_line_wins(tmp_path: Path) -> None:
    config = tmp_path / "engine.yaml"
    config.write_text("model-path: m\ntp_size: 8\nenable-metrics: true\nport: 1\n")
    args = argv.parse(["--config", str(config), "--port", "2"])
    assert (args["model_path"], args["tp_size"], args["enable_metrics"], args["port"]) == ("m", 8, True, 2)


def test_a_config_file_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "argument --config: cannot read" in refusal(capsys, "--config", "/no/such.yaml")
