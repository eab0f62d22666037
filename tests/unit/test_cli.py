"""What the command line promises: exit codes, JSON, tables in a pipe, manifests to apply, one line for a failure."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from sglpool import __version__
from sglpool.api import names
from sglpool.cli import operator as operator_command
from sglpool.cli.app import app
from sglpool.cli.logs import set_up_logging
from sglpool.cli.operator import BadArgument, OperatorArguments, options_of
from sglpool.kube import LeaseLost, Transient
from support import pools

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "manifests" / "samples" / "kimi-k2.6-coder.yaml"
GPU_FIELDS = [
    "type", "tensorParallelSize", "gpusPerReplica", "weightBytesPerGPU", "kvBytesPerTokenPerGPU", "kvTokens",
    "hostKVTokens", "hicacheSizeGBPerRank", "hostMemoryRequestBytes", "hostMemoryGuardBytes",
    "conversationsAtContext", "targetRunningRequests", "feasible", "reason", "message", "argv",
]  # fmt: skip


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


def text_of(*changes: pools.Json | None, name: str = "kimi") -> str:
    return "\n---\n".join(yaml.safe_dump(pools.manifest(c, metadata={"name": name})) for c in changes)


FITS: pools.Json = {"gpus": [{"type": "B300"}]}
TOO_LARGE: pools.Json = {"gpus": [{"type": "B300"}], "tensorParallelSize": 1}
INVALID: pools.Json = {"tensorParallelSize": 3}


def test_json_has_exactly_the_documented_fields() -> None:
    answer = json.loads(run("plan", "-f", str(SAMPLE), "-o", "json").stdout)

    assert list(answer) == ["pool", "feasible", "gpus"]
    assert (answer["pool"], answer["feasible"]) == ("kimi-k2-6-coder", True)
    assert [gpu["type"] for gpu in answer["gpus"]] == ["B200", "B300"]
    assert [list(gpu) for gpu in answer["gpus"]] == [GPU_FIELDS, GPU_FIELDS]
    documentation = (ROOT / "docs" / "plan-json.md").read_text(encoding="utf-8")
    assert [field for field in GPU_FIELDS if f"`{field}`" not in documentation] == []


def test_json_gives_the_known_answer() -> None:
    gpu = json.loads(run("plan", "-f", str(SAMPLE), "-o", "json").stdout)["gpus"][0]

    assert (gpu["kvTokens"], gpu["kvBytesPerTokenPerGPU"], gpu["hicacheSizeGBPerRank"]) == (496_663, 41_280, 102)
    assert gpu["argv"][gpu["argv"].index("--tp-size") + 1] == "4"


def test_an_unknown_gpu_type_has_no_figures_and_no_argv() -> None:
    answer = run("plan", "-f", "-", "-o", "json", stdin=text_of({"gpus": [{"type": "B400"}]}))
    gpu = json.loads(answer.stdout)["gpus"][0]

    assert answer.exit_code == 1
    assert (gpu["kvTokens"], gpu["argv"], gpu["reason"]) == (None, [], "UnknownGPUType")


def test_json_of_an_invalid_pool_lists_its_errors_on_standard_output() -> None:
    answer = run("plan", "-f", "-", "-o", "json", stdin=text_of(INVALID))

    assert answer.exit_code == 2
    assert answer.stderr == ""
    found = json.loads(answer.stdout)
    assert (found["pool"], found["valid"]) == ("kimi", False)
    assert [error["path"] for error in found["errors"]] == ["spec.tensorParallelSize"]


@pytest.mark.parametrize(
    ("changes", "code"),
    [((FITS, FITS), 0), ((FITS, TOO_LARGE), 1), ((FITS, INVALID), 2), ((TOO_LARGE, INVALID), 2)],
)
def test_several_pools_give_a_list_and_the_worst_code(changes: tuple[pools.Json, ...], code: int) -> None:
    answer = run("plan", "-f", "-", "-o", "json", stdin=text_of(*changes))

    assert answer.exit_code == code
    assert [pool["pool"] for pool in json.loads(answer.stdout)] == ["kimi", "kimi"]


def test_a_problem_in_one_of_several_documents_says_which() -> None:
    answer = run("plan", "-f", "-", stdin=text_of(FITS, INVALID))

    assert answer.stderr.startswith("standard input (document 2): spec.tensorParallelSize: ")
    assert "B300 fits" in answer.stdout


def test_the_table_can_be_followed_in_a_pipe_of_100_columns() -> None:
    answer = run("plan", "-f", str(SAMPLE))
    lines = answer.stdout.splitlines()

    assert "\x1b" not in answer.stdout
    assert max(map(len, lines)) <= 100
    begin = lines.index("B200: memory of one GPU")
    section = lines[begin + 1 : lines.index("", begin)]
    figures = {line[:24].strip(" ="): float(line.split(" GB")[0].split()[-1].replace(",", "")) for line in section}
    labels = list(figures)
    assert (labels[0], labels[-1]) == ("GPU memory", "KV pool")
    result = figures.pop("KV pool")
    assert sum(figures.values()) == pytest.approx(result, abs=0.5)


def test_the_table_says_what_a_replica_holds_and_what_to_run() -> None:
    words = " ".join(run("plan", "-f", str(SAMPLE)).stdout.split())

    assert "496,663 (estimate 440,739 to 496,663)" in words
    assert "full conversations 1 of 262,144 tokens" in words
    assert "4 of 100,000 tokens, derived" in words
    assert "--hicache-size 102 on each of 4 ranks" in words
    assert "B200 fits" in words
    assert "Replicas: 2 on B200, 0 on B300 (8 GPUs)." in words


def test_the_table_of_what_does_not_fit_says_so_and_what_would() -> None:
    answer = run("plan", "-f", "-", stdin=text_of(TOO_LARGE))

    assert answer.exit_code == 1
    words = " ".join(answer.stdout.split())
    assert "B300 does not fit (WeightsExceedHBM)" in words
    assert "The operator would start nothing of this pool" in words


def test_manifests_have_sizes_and_no_owner_and_no_namespace_of_their_own() -> None:
    answer = run("plan", "-f", str(SAMPLE), "-o", "yaml")
    manifests = list(yaml.safe_load_all(answer.stdout))

    assert answer.exit_code == 0
    engines = [m for m in manifests if m["metadata"]["labels"][names.LABEL_COMPONENT] == "engine"]
    assert [m["kind"] for m in engines if m["kind"] != "NetworkPolicy"] == [
        "ServiceAccount", "Service", "PodDisruptionBudget", "ConfigMap", "StatefulSet", "ConfigMap", "StatefulSet",
    ]  # fmt: skip
    assert not any("ownerReferences" in m["metadata"] or "namespace" in m["metadata"] for m in manifests)
    assert [m["spec"]["replicas"] for m in manifests if m["kind"] == "StatefulSet"] == [2, 0]


def test_the_router_is_in_the_table_and_among_the_manifests() -> None:
    words = " ".join(run("plan", "-f", str(SAMPLE)).stdout.split())
    assert "Router: 1 pod, at most 28 requests on a replica, http://" in words
    manifests = list(yaml.safe_load_all(run("plan", "-f", str(SAMPLE), "-o", "yaml").stdout))
    router = {m["kind"]: m for m in manifests if m["metadata"]["labels"][names.LABEL_COMPONENT] == "router"}
    volumes = router["Deployment"]["spec"]["template"]["spec"]["volumes"]
    assert router["ConfigMap"]["metadata"]["name"] in [v["configMap"]["name"] for v in volumes if "configMap" in v]
    assert not any("namespace" in m["metadata"] for m in manifests)


def test_manifests_stay_in_the_namespace_that_the_file_names() -> None:
    manifests = yaml.safe_load_all(run("plan", "-f", "-", "-o", "yaml", stdin=text_of(FITS)).stdout)

    assert {m["metadata"]["namespace"] for m in manifests} == {"serving"}


def test_no_manifest_is_printed_when_one_pool_does_not_fit() -> None:
    answer = run("plan", "-f", "-", "-o", "yaml", stdin=text_of(FITS, TOO_LARGE))

    assert answer.exit_code == 1
    assert answer.stdout == ""
    assert "WeightsExceedHBM" in answer.stderr


def test_an_argument_that_sglang_does_not_know_is_a_warning() -> None:
    answer = run("plan", "-f", "-", stdin=text_of({**FITS, "engine": {"extraArgs": ["--no-such-flag"]}}))

    assert answer.exit_code == 0
    assert "extraArgs: warning: SGLang 0.5.23 has no flag --no-such-flag" in answer.stderr


def test_version_and_help() -> None:
    assert run("--version").stdout == f"sglpool {__version__}\n"
    words = run("--help").stdout
    assert [name for name in ("plan", "operator", "crd", "sandbox", "--install-completion") if name not in words] == []
    assert "--nodes" in run("sandbox", "up", "--help").stdout


@pytest.mark.parametrize("command", ["plan", "crd"])
def test_a_command_loads_neither_clients_nor_the_sandbox(command: str) -> None:
    arguments = ["plan", "-f", str(SAMPLE)] if command == "plan" else ["crd"]
    code = (
        "import sys; from typer.testing import CliRunner; from sglpool.cli.app import app\n"
        f"assert CliRunner().invoke(app, {arguments!r}).exit_code == 0\n"
        "print([m for m in ('kopf', 'kubernetes', 'aiohttp', 'sglpool.sandbox') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n"


def test_the_operator_does_not_load_the_sandbox() -> None:
    code = (
        "import sys; from sglpool.cli.app import app; import sglpool.cli.operator\n"
        "print('sglpool.sandbox' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n"


def arguments(**changes: object) -> OperatorArguments:
    usual = {
        "kubeconfig": None, "namespaces": None, "bind": "0.0.0.0:8080", "workers": 8, "leader_elect": False,
        "resync": "5m", "log_level": "INFO", "log_json": False,
    }  # fmt: skip
    return OperatorArguments(**{**usual, **changes})  # type: ignore[arg-type]


def test_options_reach_the_operator() -> None:
    options = options_of(arguments(bind="[::1]:9000", resync="1h30m", namespaces=("a", "b"), leader_elect=True))

    assert (options.host, options.port, options.resync_period_s) == ("::1", 9000, 5400)
    assert (options.namespaces, options.leader_election) == (("a", "b"), True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bind": "8080"}, "--bind '8080' is not HOST:PORT"),
        ({"bind": "0.0.0.0:http"}, "is not HOST:PORT"),
        ({"bind": "0.0.0.0:70000"}, "is not HOST:PORT"),
        ({"resync": "300"}, "--resync '300' is not a duration"),
        ({"resync": "0s"}, "--resync 0s is no time at all"),
    ],
)
def test_an_unusable_option_is_named(changes: dict[str, object], words: str) -> None:
    with pytest.raises(BadArgument) as error:
        options_of(arguments(**changes))

    assert words in str(error.value)


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    others = {name: logging.getLogger(name).level for name in ("kopf", "aiohttp", "asyncio", "kubernetes")}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, old in others.items():
        logging.getLogger(name).setLevel(old)


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    async def failing(_options: object) -> None:
        raise error

    monkeypatch.setattr(operator_command, "run_operator", failing)
    return operator_command.run(arguments())


@pytest.mark.usefixtures("logging_as_before")
def test_an_expected_failure_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    refused = Transient("the connection failed", verb="list", kind="InferencePool")
    group = ExceptionGroup("tasks", [refused, ExceptionGroup("more", [LeaseLost("somebody else leads")])])

    assert fail_with(group, monkeypatch) == 1
    assert capsys.readouterr().err.splitlines() == [
        "sglpool operator: Cannot list InferencePool objects of the cluster: the connection failed",
        "sglpool operator: somebody else leads",
    ]


@pytest.mark.usefixtures("logging_as_before")
def test_a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert fail_with(ZeroDivisionError("oh"), monkeypatch) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.usefixtures("logging_as_before")
def test_json_logs_are_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(level="INFO", as_json=True)
    logging.getLogger("sglpool.x").warning("two\nlines of %s", "text")
    logging.getLogger("kopf.reactor").info("not for operators")

    (line,) = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["logger"], entry["message"]) == ("warning", "sglpool.x", "two\nlines of text")


@pytest.mark.usefixtures("logging_as_before")
@pytest.mark.parametrize(
    ("own", "said", "pool", "message"),
    [
        ("", "pool=serving/coder changes=['status']", "serving/coder", "changes=['status']"),
        ("", "nothing of a pool=serving/coder", None, "nothing of a pool=serving/coder"),
        ("serving/mine", "picking among 3 replicas", "serving/mine", "picking among 3 replicas"),
    ],
)
def test_json_logs_have_the_pool_as_a_field(
    capsys: pytest.CaptureFixture[str], own: str, said: str, pool: str | None, message: str
) -> None:
    set_up_logging(level="INFO", as_json=True, pool=own)
    logging.getLogger("sglpool.x").info(said)
    entry = json.loads(capsys.readouterr().err)
    assert (entry.get("pool"), entry["message"]) == (pool, message)


def test_gpu_types_of_an_installation_are_planned_with(tmp_path: Path) -> None:
    file = tmp_path / "types.yaml"
    file.write_text("B200: {node_label_key: example.com/gpu, node_label_values: [b200-sxm]}\n")
    manifests = run("plan", "-f", str(SAMPLE), "-o", "yaml", "--gpu-types", str(file)).stdout
    assert "example.com/gpu" in manifests
    assert "b200-sxm" in manifests

    file.write_text("B200: {node_labels: [x]}\n")
    refused = run("plan", "-f", str(SAMPLE), "--gpu-types", str(file))
    assert refused.exit_code == 2
    assert f"--gpu-types {file}: GPU type B200: unknown key node_labels" in refused.stderr


def test_a_file_of_gpu_types_that_cannot_be_used_ends_the_operator_with_one_line(tmp_path: Path) -> None:
    refused = run("operator", "--gpu-types", str(tmp_path / "none.yaml"))
    assert refused.exit_code == 2
    assert "--gpu-types" in refused.stderr
    assert "No such file" in refused.stderr
