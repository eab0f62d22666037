"""The start of a simulated engine as a process: its log, its exit codes, signals and faults."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglpool.sandbox.engine import startup
from sglpool.sandbox.engine.machine import FaultsFile, MachineError, load_machine
from sglpool.sandbox.engine.spec import Spec
from support.waiting import wait_until

from .startup_inputs import machine, make_draft, make_model, write_machine

LIMIT_S = 30
FAST = 100_000.0
# At this speed a start of minutes lasts longer than any test.
SLOW = 0.001


def engine_command(folder: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "sglpool.sandbox.engine", "--machine", str(folder), "--", *words]


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(engine_command(folder, *words), capture_output=True, text=True, timeout=LIMIT_S, check=False)


@contextlib.contextmanager
def loading(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """An engine that has begun to load and will not end by itself."""
    log = folder / "log"
    with log.open("w") as stream:
        process = subprocess.Popen(engine_command(folder, *words), stderr=stream, text=True)
    try:
        wait_until(
            lambda: "Init torch distributed begin." in log.read_text(),
            timeout_s=LIMIT_S,
            describe=lambda: f"the engine began to load: {log.read_text()}",
        )
        yield process, log
    finally:
        process.kill()
        process.wait(LIMIT_S)


def start(tmp_path: Path, *words: str) -> Spec:
    model = make_model(tmp_path / "model")
    return startup.start(["--model-path", str(model), *words], machine(tmp_path))


def test_a_start_ends_with_everything_the_server_needs(tmp_path: Path) -> None:
    spec = start(tmp_path, "--port", "31000", "--served-model-name", "lite", "--max-queued-requests", "4")
    assert (spec.served_model_name, spec.port, spec.host) == ("lite", 31000, "127.0.0.1")
    assert spec.engine.max_total_tokens == spec.capacity.token_capacity
    assert spec.engine.max_queued_requests == 4
    assert spec.engine.max_running_requests == 4096
    assert spec.args["max_running_requests"] is None
    assert spec.launch_command.startswith("sglang serve --model-path")
    assert spec.max_req_input_len_tokens == 163_834
    assert spec.startup.load_weight_s > 10
    assert not spec.speculative
    assert not spec.vision


def test_a_draft_makes_it_speculative(tmp_path: Path) -> None:
    draft = make_draft(tmp_path / "draft")
    spec = start(tmp_path, "--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", str(draft))
    assert spec.speculative
    assert spec.engine.rates.accept_length > 1


def test_dummy_weights_take_no_time_to_load(tmp_path: Path) -> None:
    assert start(tmp_path, "--load-format", "dummy").startup.load_weight_s == 0


def test_the_log_looks_like_sglangs_and_says_that_it_is_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(tmp_path, "--mem-fraction-static", "0.5", "--api-key", "secret", "--enable-hierarchical-cache")
    log = capsys.readouterr().err
    order = [
        "simulated SGLang 0.5.23",
        "server_args=ServerArgs(model_path=",
        "TP0] Init torch distributed begin.",
        "TP0] Load weight begin. avail mem=139.12 GB",
        "100% Completed | 1/1",
        "type=DeepseekV2ForCausalLM, mem usage=29.45 GB",
        "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 138",
        "Allocating kv hierarchical KV host pool: ",
        "Capture cuda graph end.",
        "TP0] max_total_num_tokens=138",
    ]
    places = [log.find(part) for part in order]
    assert -1 not in places, log
    assert places == sorted(places)
    assert "secret" not in log


def test_a_start_may_have_a_speed_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hurried = load_machine(write_machine(tmp_path, speed=SLOW, start_speed=FAST))
    startup.start(["--model-path", str(make_model(tmp_path / "model"))], hurried)
    assert "times 0.001 x life, its start 100000 x" in capsys.readouterr().err


def test_a_wrong_command_line_ends_with_2(tmp_path: Path) -> None:
    done = run(write_machine(tmp_path), "--model-path", "m", "--no-such-flag")
    assert done.returncode == 2
    assert done.stderr.endswith("sglang serve: error: unrecognized arguments: --no-such-flag\n")


def test_a_refused_combination_ends_with_1_and_a_traceback(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    words = ("--enable-hierarchical-cache", "--disable-radix-cache")
    done = run(write_machine(tmp_path), "--model-path", str(model), *words)
    assert done.returncode == 1
    assert "Traceback (most recent call last):\nValueError: The arguments enable-hierarchical-cache and" in done.stderr


def test_a_missing_model_ends_with_1(tmp_path: Path) -> None:
    done = run(write_machine(tmp_path), "--model-path", str(tmp_path / "nowhere"))
    assert done.returncode == 1
    assert "Repo id must be in the form" in done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--mem-fraction-static", "0.2"), "RuntimeError: Not enough memory. Please try to increase"),
        (("--tp-size", "2"), "CUDA error: invalid device ordinal"),
        (("--mem-fraction-static", "0.999"), "Capture cuda graph failed"),
        (("--enable-hierarchical-cache", "--hicache-size", "9000"), "ValueError: Not enough host memory available"),
    ],
)
def test_what_ends_a_rank_kills_the_server(tmp_path: Path, words: tuple[str, ...], sentence: str) -> None:
    model = make_model(tmp_path / "model")
    done = run(write_machine(tmp_path), "--model-path", str(model), *words)
    assert done.returncode == -signal.SIGKILL
    assert sentence in done.stderr
    assert "Received sigquit from a child process. It usually means the child failed." in done.stderr


def test_weights_that_vanished_kill_the_server(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    (model / "model.safetensors").unlink()
    done = run(write_machine(tmp_path), "--model-path", str(model))
    assert done.returncode == -signal.SIGKILL
    assert "Cannot find any model weights" in done.stderr


def test_sigterm_during_the_load_has_its_default_action(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    with loading(write_machine(tmp_path, speed=SLOW), "--model-path", str(model)) as (process, _):
        process.terminate()
        assert process.wait(LIMIT_S) == -signal.SIGTERM


@pytest.mark.parametrize(
    ("faults", "sentence"),
    [
        ({"crash": "oom"}, "torch.OutOfMemoryError: CUDA out of memory"),
        ({"gpu_lost": True}, "Xid 79"),
    ],
)
def test_a_fault_ends_the_load(tmp_path: Path, faults: dict[str, object], sentence: str) -> None:
    model = make_model(tmp_path / "model")
    folder = write_machine(tmp_path, speed=SLOW)
    with loading(folder, "--model-path", str(model)) as (process, log):
        (folder / "faults.json").write_text(json.dumps(faults))
        assert process.wait(LIMIT_S) == -signal.SIGKILL
        assert sentence in log.read_text()


def test_without_a_machine_there_is_one_sentence(tmp_path: Path) -> None:
    done = run(tmp_path, "--model-path", "m")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "machine.json cannot be read" in done.stderr


def test_faults_are_read_again_when_their_file_changes(tmp_path: Path) -> None:
    faults = FaultsFile(load_machine(write_machine(tmp_path)))
    path = tmp_path / "faults.json"
    assert not faults.read().deadly
    path.write_text('{"hang": true, "stall": true, "accept_length": 1.0, "prefill_slowdown": 10}')
    seen = faults.read()
    assert seen.stall
    assert (seen.hang, seen.accept_length, seen.prefill_slowdown, seen.deadly) == (True, 1.0, 10.0, False)
    path.write_text('{"gpu_lost": true}')
    os.utime(path, (1, 1))
    assert faults.read().deadly
    path.unlink()
    assert not faults.read().deadly


@pytest.mark.parametrize("content", ["{", "[]", '{"prefill_slowdown": "much", "accept_length": -1}'])
def test_faults_that_make_no_sense_are_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "faults.json").write_text(content)
    faults = load_machine(write_machine(tmp_path)).faults()
    assert (faults.prefill_slowdown, faults.accept_length, faults.deadly) == (1.0, None, False)


@pytest.mark.parametrize(
    "changes", [{"speed": 0}, {"start_speed": 0}, {"gpus": "many"}, {"accelerator": None, "gpu_memory_mib": None}]
)
def test_a_machine_that_makes_no_sense_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(MachineError, match=r"machine\.json"):
        load_machine(write_machine(tmp_path, **changes))
