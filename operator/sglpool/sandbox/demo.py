"""`sglpool sandbox demo`: a pool's life on a real control plane, told as it happens, with a report at the end.

Every command that a user would type is shown and really run; what it prints is what they would see. A step that does
not go as told ends the demo with an error. Not here: any knowledge of how the operator works.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from sglpool.sandbox import demo_lifecycle, demo_load
from sglpool.sandbox.cluster import Sandbox
from sglpool.sandbox.demo_pool import Manifest, demo_pool
from sglpool.sandbox.demo_scene import POOL, READY_S, SPEED, START_SPEED, Scene, relative
from sglpool.sandbox.demo_show import Show
from sglpool.sandbox.demo_stage import Stage
from sglpool.sandbox.errors import SandboxError

NODES = {"B200": 4, "B300": 2}
CLOCK_SPEED = 30.0
"""Of the operator's autoscaler."""


class Demo:
    """One run of the demo.

    Args:
        folder: Where the sandbox lives meanwhile.
        sample: The pool's manifest.
        report: Where the report goes.
        console: Where the story is told.
    """

    def __init__(self, folder: Path, sample: Path, report: Path, console: Console) -> None:
        self._sandbox = Sandbox(folder)
        self._folder = folder
        self._sample = sample
        self._report = report
        self._stage = Stage(console)

    def run(self) -> None:
        """Tell the whole story; whatever happens, nothing is left running.

        Raises:
            SandboxError: Something did not go as told.
        """
        begin = time.monotonic()
        stage = self._stage
        pool = demo_pool(self._sample)
        stage.title("A cluster: etcd, API server, controller manager, scheduler, and a node agent")
        stage.say(
            "Real processes on this machine. Pods are real too: the agent runs their containers as they are written. "
            f"Simulated are the GPUs (4 nodes with 8 B200, 2 with 8 B300) and SGLang's arithmetic, {SPEED:g} times "
            "faster than life."
        )
        try:
            self._sandbox.up(NODES, speed=SPEED, start_speed=START_SPEED, say=stage.whisper)
            stage.point_at(self._sandbox.kubectl, self._sandbox.kubeconfig)
            stage.kubectl("get", "nodes", "-L", "nvidia.com/gpu.product")
            with self._operator(), self._recorded() as show:
                self._tell(Scene(stage=stage, show=show, api=self._sandbox.api, folder=self._folder), pool)
        finally:
            self._sandbox.down()
        stage.title(f"Done in {time.monotonic() - begin:.0f} s; nothing is left running")

    @staticmethod
    def _tell(scene: Scene, pool: Manifest) -> None:
        demo_lifecycle.create(scene, pool)
        for chapter in (
            demo_lifecycle.talk,
            demo_lifecycle.refuse,
            demo_lifecycle.infeasible,
            demo_load.work,
            demo_load.grow,
            demo_load.lose,
            demo_load.shrink,
            demo_lifecycle.delete,
        ):
            chapter(scene)

    @contextmanager
    def _recorded(self) -> Iterator[Show]:
        """Record what happens; the report is written however it ends."""
        show = Show(self._sandbox.api, POOL, demo_load.MIX, start_speed=START_SPEED)
        show.start()
        self._stage.figures = show.line
        try:
            yield show
        finally:
            self._stage.figures = str
            try:
                show.stop()
            finally:
                show.write_report(self._report)
            self._stage.say(f"\nThe run as one page, for a browser: {relative(self._report)}")

    @contextmanager
    def _operator(self) -> Iterator[None]:
        """Install the CRD and run the operator as a process."""
        self._stage.title("The operator: the CRD, and one process")
        crd = self._stage.sglpool("crd", hide=True)
        self._stage.typed("sglpool crd | kubectl apply --server-side -f -")
        self._stage.kubectl("apply", "--server-side", "-f", "-", text=crd, hide=True)
        self._stage.until(
            lambda: self._stage.succeeds("get", "sglpool"), "InferencePools are not served", limit_s=READY_S
        )
        clock = f"--clock-speed={CLOCK_SPEED:g}"
        self._stage.typed(f"sglpool operator {clock} &")
        self._stage.say(
            "Its autoscaler lives faster than life too: a quarter of an hour of patience takes half a minute here."
        )
        log = self._folder / "logs" / "operator.log"
        with log.open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "sglpool", "operator", "--bind", "127.0.0.1:0", clock],
                env=self._stage.environment,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        try:
            yield
            if process.poll() is not None:
                raise SandboxError(f"the operator ended early:\n{log.read_text()[-2000:]}")
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
