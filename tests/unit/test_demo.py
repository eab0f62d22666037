"""The demo's own parts: what it shows, how it fails, which node it gives up, and the pool that it applies."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from sglpool.api.validate import load_pool
from sglpool.sandbox.apiserver import ApiServer
from sglpool.sandbox.demo_load import victim
from sglpool.sandbox.demo_pool import demo_pool
from sglpool.sandbox.demo_show import Show
from sglpool.sandbox.demo_stage import Stage
from sglpool.sandbox.errors import SandboxError
from sglpool.sandbox.report_data import Replica, Request, Sample, State
from sglpool.sandbox.traffic import Mix, Traffic

SAMPLE = Path(__file__).parents[2] / "manifests/samples/kimi-k2.6-coder.yaml"


def stage(*, terminal: bool = False) -> tuple[Stage, io.StringIO]:
    """A stage whose kubectl is Python."""
    out = io.StringIO()
    made = Stage(Console(file=out, force_terminal=terminal, width=80))
    made.point_at(Path(sys.executable), Path("nowhere"))
    return made, out


def test_a_command_is_shown_with_what_it_says() -> None:
    made, out = stage()
    assert made.kubectl("-c", "import os; print(os.environ['KUBECONFIG'])") == "nowhere"
    assert out.getvalue() == "$ kubectl -c 'import os; print(os.environ['KUBECONFIG'])'\nnowhere\n"


def test_a_hidden_command_shows_nothing_and_takes_text() -> None:
    made, out = stage()
    assert made.kubectl("-c", "print(input()[::-1])", text="abc", hide=True) == "cba"
    assert out.getvalue() == ""


def test_a_command_that_fails_ends_the_story_with_its_words() -> None:
    made, _ = stage()
    with pytest.raises(SandboxError, match=r"`kubectl -c .*` failed: no such pool"):
        made.kubectl("-c", "import sys; sys.exit('no such pool')")


def test_a_command_that_is_not_refused_ends_the_story_too() -> None:
    made, out = stage()
    assert made.kubectl("-c", "import sys; sys.exit('not so')", refused=True) == ""
    assert "not so" in out.getvalue()
    with pytest.raises(SandboxError, match="succeeded"):
        made.kubectl("-c", "print(1)", refused=True)


class Interrupt(BaseException):
    """What a signal raises."""


def test_no_command_outlives_an_interrupt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sglpool.sandbox.demo_stage.PIPE_EVERY_S", 0.0)
    made, _ = stage()
    began = tmp_path / "began"

    def figures() -> str:
        if began.exists() and began.read_text():
            raise Interrupt
        return ""

    made.figures = figures
    with pytest.raises(Interrupt):
        made.kubectl("-c", f"import os, time; open({str(began)!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    with pytest.raises(ProcessLookupError):
        os.kill(int(began.read_text()), 0)


def test_a_command_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglpool.sandbox.demo_stage.COMMAND_LIMIT_S", 0.2)
    made, _ = stage()
    with pytest.raises(SandboxError, match="did not end within"):
        made.kubectl("-c", "import time; time.sleep(600)")


def test_a_wait_has_a_limit_and_says_what_is_missing() -> None:
    made, _ = stage()
    made.until(lambda: True, "never", limit_s=0)
    with pytest.raises(SandboxError, match="after 0 s the replicas are not ready"):
        made.until(lambda: False, "the replicas are not ready", limit_s=0)


def test_on_a_terminal_the_figures_are_one_line_that_changes() -> None:
    made, out = stage(terminal=True)
    made.figures = lambda: "2 of 3 replicas ready"
    waits = iter([False, False, True])
    made.until(lambda: next(waits), "never", limit_s=30)
    assert "2 of 3 replicas ready" in out.getvalue()


def test_in_a_pipe_the_figures_are_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglpool.sandbox.demo_stage.PIPE_EVERY_S", 0.0)
    made, out = stage()
    made.figures = lambda: "2 of 3 replicas ready"
    waits = iter([False, False, True])
    made.until(lambda: next(waits), "never", limit_s=30)
    assert out.getvalue() == "  2 of 3 replicas ready\n" * 2


def sample(**nodes: str) -> Sample:
    """Replicas by name: where each is, and how many conversations it has."""
    replicas = []
    for pod, place in nodes.items():
        node, _, conversations = place.partition(" ")
        state = State.SERVING if node else State.STARTING
        replicas.append(Replica(pod=pod, gpu="B200", node=node, state=state, conversations=int(conversations or 0)))
    return Sample(at_s=0.0, replicas=tuple(replicas))


def test_the_node_to_lose_carries_few_replicas_with_much_to_do() -> None:
    assert victim(sample(a="n-0 9", b="n-0 9", c="n-1", d="")) == ("n-1", ["c"])
    assert victim(sample(a="n-0 3", b="n-1 5", c="n-2 4")) == ("n-1", ["b"])


def test_a_pool_on_one_node_is_not_lost() -> None:
    with pytest.raises(SandboxError, match="one node"):
        victim(sample(a="n-0", b="n-0"))


def test_the_demo_applies_a_valid_pool_with_two_gpu_types() -> None:
    manifest = demo_pool(SAMPLE)
    pool = load_pool(manifest)
    assert [gpu.type for gpu in pool.spec.gpus] == ["B200", "B300"]
    assert pool.spec.rollout.drain_timeout == 10
    assert pool.spec.autoscaling is not None
    assert pool.spec.replicas is None


@pytest.mark.parametrize(
    "text", ["kind: Pod", "[1, 2]", "a: [", "", "{apiVersion: sglpool.io/v1alpha1, kind: InferencePool}"]
)
def test_a_sample_that_is_no_pool_is_said_to_be_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "sample.yaml"
    file.write_text(text)
    with pytest.raises(SandboxError, match=r"sample\.yaml"):
        demo_pool(file)
    with pytest.raises(SandboxError, match="cannot read"):
        demo_pool(tmp_path / "missing.yaml")


class NoServer:
    """An API server that nobody asks."""


def show() -> Show:
    return Show(cast(ApiServer, NoServer()), "coder", Mix(speed=40.0))


def test_the_report_is_written_however_early_the_demo_ends(tmp_path: Path) -> None:
    made = show()
    made.chapter("The pool is applied")
    made.write_report(tmp_path / "new" / "report.html")
    made.stop()
    assert "The pool is applied" in (tmp_path / "new" / "report.html").read_text()


def test_a_report_that_cannot_be_written_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="--report"):
        show().write_report(tmp_path)


def test_the_live_line_before_anything_is_known() -> None:
    assert show().line() == "0:00  0/0 ready"


def test_a_request_that_was_sent_before_a_fault_and_fails_after_it_counts() -> None:
    done: list[Request] = []

    class Agents:
        def requests(self) -> list[Request]:
            return done

    made = show()
    made.traffic = cast(Traffic, Agents())
    done.append(Request(at_s=0.0))
    before = made.failed
    done.append(Request(at_s=0.0, problem="the stream broke off"))
    assert made.failed - before == 1
