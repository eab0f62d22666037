"""References and the executables behind them, run as a container would run them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sglpool.sandbox.images import UnknownImage, nvidia_smi, resolve
from sglpool.sandbox.images.resolve import python_binds

from .startup_inputs import B200, make_model, write_machine

LIMIT_S = 30
needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
DIGEST = "sha256:" + "0" * 64


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLPOOL_CACHE", str(tmp_path / "cache"))


def run(image: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the image first on PATH and nothing else of this process's environment."""
    found = resolve(image)
    env = {"PATH": f"{found.path}:/usr/bin:/bin", **found.env}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)


@pytest.mark.parametrize(
    "reference",
    [
        "lmsysorg/sglang:v0.5.23",
        "lmsysorg/sglang:v0.5.20-cu130",
        "lmsysorg/sglang:latest-cu130-runtime",
        "lmsysorg/sglang",
        f"lmsysorg/sglang:v0.5.23@{DIGEST}",
        f"lmsysorg/sglang@{DIGEST}",
        "registry.example.com:5000/mirror/lmsysorg/sglang:v0.5.23",
    ],
)
def test_sglangs_references_lead_to_one_folder(reference: str) -> None:
    image = resolve(reference)
    assert image.name == reference
    assert image.path == resolve("lmsysorg/sglang:v0.5.23").path
    assert sorted(os.listdir(image.path)) == ["nvidia-smi", "python", "python3", "sglang"]


@pytest.mark.parametrize(
    "reference",
    ["lmsysorg/sglang:does-not-exist", "lmsysorg/sglang:0.5", "lmsysorg/vllm:v1", "nobody/nothing:1", "alpine"],
)
def test_an_unknown_image_is_not_found_in_a_kubelets_words(reference: str) -> None:
    with pytest.raises(UnknownImage) as unknown:
        resolve(reference)
    assert str(unknown.value).startswith(f'failed to pull and unpack image "{reference}": ')
    assert str(unknown.value).endswith(": not found")


@pytest.mark.parametrize("reference", ["", "Upper/Case:1", "a b", "lmsysorg/sglang@sha256:1"])
def test_what_is_no_reference_is_invalid(reference: str) -> None:
    with pytest.raises(UnknownImage, match="invalid reference format"):
        resolve(reference)


def test_the_binds_hold_the_interpreter_and_the_package() -> None:
    import sglpool

    sources = [source for source, target in python_binds() if source == target]
    assert len(sources) == len(python_binds())
    for needed in (Path(sglpool.__file__).resolve(), resolve("sglpool:1").path / "sglpool"):
        if needed.name == "sglpool":
            needed = Path(needed.read_text().split()[2])
        assert any(needed.is_relative_to(source) for source in (*sources, Path("/usr"))), needed


def test_busyboxs_utilities_are_the_machines() -> None:
    assert run("busybox:1.36", "busybox", "test", "-d", "/").returncode == 0
    assert resolve("busybox").command == ("sh",)
    assert resolve("busybox").binds == ()


def test_the_image_of_sglpool_has_its_command_line() -> None:
    done = run("example.com/sglpool:1", "sglpool", "--help")
    assert done.returncode == 0, done.stderr
    assert "sandbox" in done.stdout


def test_sglang_says_its_version_and_knows_no_other_command() -> None:
    assert run("lmsysorg/sglang:latest", "sglang", "version").stdout == "sglang version: 0.5.23 (simulated)\n"
    assert run("lmsysorg/sglang:latest", "sglang", "generate").returncode == 2


def in_container(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command as PID 1 of a container that has nothing but the image, its binds and the machine folder."""
    image = resolve("lmsysorg/sglang:latest")
    shared = [word for name in ("lib", "lib64", "bin") for word in ("--symlink", f"usr/{name}", f"/{name}")]
    binds = [(image.path, image.path), *image.binds, (folder, "/run/sandbox"), (folder / "model", "/model")]
    argv = ["bwrap", "--unshare-pid", "--as-pid-1", "--die-with-parent", "--ro-bind", "/usr", "/usr", *shared]
    argv += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--clearenv"]
    argv += ["--setenv", "PATH", f"{image.path}:/usr/bin:/bin"]
    argv += [word for source, target in binds for word in ("--ro-bind", str(source), str(target))]
    return subprocess.run([*argv, *command], capture_output=True, text=True, timeout=LIMIT_S, check=False)


@needs_bubblewrap
@pytest.mark.parametrize(
    ("command", "prog"),
    [
        (("sglang", "serve"), "sglang serve"),
        (("python3", "-m", "sglang.launch_server"), "launch_server.py"),
        (("python", "-u", "-m", "sglang.launch_server"), "launch_server.py"),
    ],
)
def test_every_way_to_start_the_server_reaches_the_engine(tmp_path: Path, command: tuple[str, ...], prog: str) -> None:
    make_model(tmp_path / "model")
    done = in_container(write_machine(tmp_path), *command, "--model-path", "/model", "--no-such-flag", "a b")
    assert done.returncode == 2, done.stderr
    assert done.stderr.endswith(f"{prog}: error: unrecognized arguments: --no-such-flag a b\n")


@needs_bubblewrap
def test_a_dying_engine_ends_its_container_also_as_pid_1(tmp_path: Path) -> None:
    make_model(tmp_path / "model")
    folder = write_machine(tmp_path)
    done = in_container(folder, "sglang", "serve", "--model-path", "/model", "--mem-fraction-static", "0.2")
    assert done.returncode == 137, done.stderr
    assert "Received sigquit from a child process" in done.stderr


@needs_bubblewrap
def test_the_container_sees_its_gpus(tmp_path: Path) -> None:
    make_model(tmp_path / "model")
    done = in_container(write_machine(tmp_path, gpus=2), "nvidia-smi", "-L")
    assert [line.partition(" (")[0] for line in done.stdout.splitlines()] == [
        "GPU 0: NVIDIA H200",
        "GPU 1: NVIDIA H200",
    ]


def test_python3_is_a_python_with_a_hub() -> None:
    code = "import sys, huggingface_hub; print(huggingface_hub.__version__, sys.argv[1:])"
    done = run("lmsysorg/sglang:latest", "python3", "-u", "-c", code, "a b")
    assert done.stdout == "0.0.0+simulated ['a b']\n", done.stderr


def test_another_pythonpath_stays(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("print('own')")
    image = resolve("lmsysorg/sglang:latest")
    env = {"PATH": f"{image.path}:/usr/bin:/bin", "PYTHONPATH": str(tmp_path)}
    command = ["python3", "-c", "import own, huggingface_hub"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.stdout == "own\n", done.stderr


def smi(folder: Path, *arguments: str, capsys: pytest.CaptureFixture[str], proc: Path | None = None) -> tuple[int, str]:
    code = nvidia_smi.main(arguments, folder=folder, proc=proc or folder)
    return code, capsys.readouterr().out


def test_nvidia_smi_lists_the_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_machine(tmp_path, **{**B200, "gpus": 4})
    code, table = smi(folder, capsys=capsys)
    assert code == 0
    assert table.count("NVIDIA B200") == 4
    assert table.count("0MiB / 183359MiB") == 4
    _, listed = smi(folder, "-L", capsys=capsys)
    assert len(set(listed.splitlines())) == 4


def test_nvidia_smi_answers_queries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_machine(tmp_path, **{**B200, "gpus": 2})
    query = "--query-gpu=index,name,memory.total"
    assert smi(folder, query, "--format=csv,noheader", capsys=capsys)[1].splitlines() == [
        "0, NVIDIA B200, 183359 MiB",
        "1, NVIDIA B200, 183359 MiB",
    ]
    plain = smi(folder, query, "--format=csv,noheader,nounits", capsys=capsys)[1]
    assert plain.splitlines()[0] == "0, NVIDIA B200, 183359"
    assert smi(folder, query, "--format=csv", capsys=capsys)[1].startswith("index, name, memory.total [MiB]\n")
    assert smi(folder, "--query-gpu=colour", capsys=capsys)[0] == 2


def test_nvidia_smi_sees_an_engine_that_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_machine(tmp_path / "machine", **B200)
    process = tmp_path / "proc" / "7"
    process.mkdir(parents=True)
    (process / "cmdline").write_bytes(b"python3\0-m\0sglpool.sandbox.engine\0--\0")
    assert "168690MiB / 183359MiB" in smi(folder, capsys=capsys, proc=tmp_path / "proc")[1]


def test_nvidia_smi_fails_without_a_driver_gpus_or_with_a_lost_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert smi(tmp_path, capsys=capsys)[0] == 9
    folder = write_machine(tmp_path, gpus=0)
    assert smi(folder, capsys=capsys) == (6, "No devices were found\n")
    folder = write_machine(tmp_path)
    (folder / "faults.json").write_text(json.dumps({"gpu_lost": True}))
    code, text = smi(folder, capsys=capsys)
    assert code == 15
    assert "GPU is lost" in text
