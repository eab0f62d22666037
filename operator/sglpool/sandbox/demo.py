"""`sglpool sandbox demo`: a pool's life on a real control plane, told as it happens.

Every command that a user would type is shown and really run; what it prints is what they would see. A step that does
not go as told ends the demo with an error. Not here: any knowledge of how the operator works.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from sglpool.sandbox.chat import Reply, Turn, stream_chat
from sglpool.sandbox.cluster import Sandbox
from sglpool.sandbox.demo_conversation import first_turn, tool_result
from sglpool.sandbox.errors import SandboxError
from sglpool.sandbox.pod_commands import pod_address, ready_pod

POOL = "kimi-k2-6-coder"
NODES = {"B200": 4, "B300": 2}
SPEED = 40.0
READY_S = 180


class Demo:
    """One run of the demo.

    Args:
        folder: Where the sandbox lives meanwhile.
        sample: The pool's manifest.
        console: Where the story is told.
    """

    def __init__(self, folder: Path, sample: Path, console: Console) -> None:
        self._sandbox = Sandbox(folder)
        self._folder = folder
        self._sample = sample
        self._console = console

    def run(self) -> None:
        """Tell the whole story; whatever happens, nothing is left running.

        Raises:
            SandboxError: Something did not go as told.
        """
        begin = time.monotonic()
        self._title("A cluster: etcd, API server, controller manager, scheduler, and a node agent")
        self._say(
            "Real processes on this machine. Pods are real too: the agent runs their containers as they are written. "
            f"Simulated are the GPUs (4 nodes with 8 B200, 2 with 8 B300) and SGLang's arithmetic, {SPEED:g} times "
            "faster than life."
        )
        try:
            self._sandbox.up(NODES, speed=SPEED, say=self._whisper)
            self._kubectl("get", "nodes", "-L", "nvidia.com/gpu.product")
            with self._operator():
                for chapter in (self._create, self._talk, self._scale, self._refuse, self._infeasible, self._delete):
                    chapter()
        finally:
            self._sandbox.down()
        self._title(f"Done in {time.monotonic() - begin:.0f} s; nothing is left running")

    def _create(self) -> None:
        self._title("Apply the sample: Kimi K2.6 on four B200s a replica, two replicas")
        self._kubectl("apply", "-f", self._relative(self._sample))
        self._say(
            "The operator sizes it and writes its StatefulSets; the scheduler finds nodes; the agent starts the pods."
        )
        self._say(
            "Each fetches and verifies 595 GB of (simulated) weights, loads them, and warms up. In life that takes a "
            f"quarter of an hour, here {15 * 60 / SPEED:.0f} seconds."
        )
        self._wait_ready()
        self._kubectl("get", "sglpool")
        self._kubectl("get", "statefulsets,pods", "-o", "wide")
        self._say("Two replicas of 4 GPUs share one 8-GPU node, so that whole nodes stay free for others.")

    def _talk(self) -> None:
        self._title("A coding agent's conversation, through the pool's router")
        self._kubectl("get", "deployments,pods", "-l", "app.kubernetes.io/component=router")
        address = pod_address(ready_pod(self._sandbox.api, "default", POOL))
        self._say("Envoy moves the bytes, a picker beside it decides which replica gets a conversation, and remembers.")
        messages = first_turn()
        self._say(f"First turn, to http://{address}/v1: system prompt, tools and a repository's files.")
        reply = self._turn(address, messages)
        messages += [{"role": "assistant", "content": reply.text}, *tool_result()]
        self._say("Second turn: all of the first, the answer, and what a tool said. Its KV cache is still there:")
        again = self._turn(address, messages)
        if again.cached_tokens < 0.9 * again.prompt_tokens:
            raise SandboxError(f"the second turn found only {again.cached_tokens} of its tokens in the cache")
        self._command("router", "show", POOL)
        prefill_s = SPEED * reply.first_token_s
        self._say(
            f"In life the first answer would have begun after {prefill_s:.1f} s of prefill on four B200s, the second "
            f"after {SPEED * again.first_token_s:.1f} s. That is why a conversation must stay where its cache is."
        )

    def _turn(self, address: str, messages: list[dict[str, Any]]) -> Reply:
        shown: list[str] = []
        reply = stream_chat(address, Turn(messages=messages, max_tokens=120, session="demo"), on_text=shown.append)
        self._console.print(f"  {reply.text[:200]}...", style="green", highlight=False, markup=False, soft_wrap=True)
        self._console.print(f"  {reply.summary()}", style="bold", highlight=False, soft_wrap=True)
        return reply

    def _scale(self) -> None:
        self._title("Scale it like any workload")
        self._kubectl("scale", f"sglpool/{POOL}", "--replicas=5")
        self._wait_ready()
        self._kubectl("get", "pods", "-o", "wide")
        self._kubectl("scale", f"sglpool/{POOL}", "--replicas=2")
        self._wait_ready()
        # Ready again as soon as two are wanted and ready; the other three are still on their way out.
        gone = [f"pod/{POOL}-b200-{ordinal}" for ordinal in (4, 3, 2)]
        self._kubectl("wait", *gone, "--for=delete", f"--timeout={READY_S}s")

    def _refuse(self) -> None:
        self._title("A bad change is refused at once, by the API server")
        self._patch('{"spec":{"tensorParallelSize":3}}', refused=True)
        self._patch('{"spec":{"kvCache":{"hiCache":{"size":480}}}}', refused=True)
        self._patch('{"spec":{"engine":{"extraArgs":["--tp-size=8"]}}}', refused=True)

    def _infeasible(self) -> None:
        self._title("A change that cannot fit is accepted, explained, and not carried out")
        self._say("With two GPUs a replica instead of four, the weights alone would be larger than a GPU.")
        before = self._pod_uids()
        self._patch('{"spec":{"tensorParallelSize":2}}')
        self._kubectl("wait", f"sglpool/{POOL}", "--for=condition=Feasible=False", f"--timeout={READY_S}s")
        message = '-o=jsonpath={.status.conditions[?(@.type=="Feasible")].message}{"\\n"}'
        self._kubectl("get", f"sglpool/{POOL}", message)
        self._kubectl("get", "sglpool")
        if self._pod_uids() != before:
            raise SandboxError("the infeasible change touched running pods")
        self._say("Both replicas run on, untouched. Taking the change back makes the pool Ready again:")
        self._patch('{"spec":{"tensorParallelSize":4}}')
        self._wait_ready()

    def _delete(self) -> None:
        self._title("Delete it: nothing stays behind")
        self._kubectl("delete", "sglpool", POOL)
        self._say(
            "Kubernetes' garbage collector removes the children; of a CRD this young it learns within 30 seconds."
        )
        selector = f"sglpool.io/pool={POOL}"
        kinds = "statefulsets,deployments,pods,services,serviceaccounts,configmaps,poddisruptionbudgets"
        self._until(
            lambda: not self._quiet("get", kinds, "-l", selector, "-o", "name"), "objects of the pool are still there"
        )
        self._kubectl("get", kinds, "-l", selector)

    @contextmanager
    def _operator(self) -> Iterator[None]:
        """Install the CRD and run the operator as a process."""
        self._title("The operator: the CRD, and one process")
        crd = subprocess.run([sys.executable, "-m", "sglpool", "crd"], check=True, capture_output=True, text=True)
        self._console.print("$ sglpool crd | kubectl apply --server-side -f -", style="bold cyan", highlight=False)
        self._run(["apply", "--server-side", "-f", "-"], text=crd.stdout)
        self._until(lambda: self._execute(["get", "sglpool"], None).returncode == 0, "InferencePools are not served")
        self._console.print("$ sglpool operator &", style="bold cyan", highlight=False)
        log = self._folder / "logs" / "operator.log"
        with log.open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "sglpool", "operator", "--bind", "127.0.0.1:0"],
                env=self._environment(),
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

    def _until(self, done: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + READY_S
        while not done():
            if time.monotonic() > deadline:
                raise SandboxError(otherwise)
            time.sleep(0.2)

    def _wait_ready(self) -> None:
        self._kubectl("wait", f"sglpool/{POOL}", "--for=condition=Ready", f"--timeout={READY_S}s")

    def _patch(self, patch: str, *, refused: bool = False) -> None:
        self._kubectl("patch", "sglpool", POOL, "--type=merge", "-p", patch, refused=refused)

    def _pod_uids(self) -> str:
        return self._quiet("get", "pods", "-o", "jsonpath={.items[*].metadata.uid}")

    def _kubectl(self, *arguments: str, refused: bool = False) -> None:
        """Show a command, run it, show its output; fail when it fares otherwise than told."""
        shown = " ".join(_quote(argument) for argument in arguments)
        self._console.print(f"$ kubectl {shown}", style="bold cyan", highlight=False, markup=False, soft_wrap=True)
        self._run(list(arguments), refused=refused)

    def _run(self, arguments: list[str], *, text: str | None = None, refused: bool = False) -> None:
        done = self._execute(arguments, text)
        output = (done.stdout + done.stderr).rstrip()
        style = "yellow" if refused else ""
        self._console.print(output, style=style, highlight=False, markup=False, soft_wrap=True)
        if (done.returncode != 0) != refused:
            raise SandboxError(f"`kubectl {' '.join(arguments)}` was {'accepted' if refused else 'refused'}")

    def _command(self, *arguments: str) -> None:
        """Show a command of sglpool, run it, show its output; fail when it fails."""
        self._console.print(f"$ sglpool {' '.join(arguments)}", style="bold cyan", highlight=False, markup=False)
        command = [sys.executable, "-m", "sglpool", *arguments]
        done = subprocess.run(
            command, env=self._environment(), capture_output=True, text=True, timeout=READY_S, check=False
        )
        self._console.print(done.stdout.rstrip(), highlight=False, markup=False, soft_wrap=True)
        if done.returncode != 0:
            raise SandboxError(f"`sglpool {' '.join(arguments)}` failed: {done.stderr.strip()}")

    def _quiet(self, *arguments: str) -> str:
        done = self._execute(list(arguments), None)
        if done.returncode != 0:
            raise SandboxError(f"`kubectl {' '.join(arguments)}`: {done.stderr.strip()}")
        return done.stdout.strip()

    def _execute(self, arguments: list[str], text: str | None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._sandbox.kubectl, *arguments],
            env=self._environment(),
            input=text,
            capture_output=True,
            text=True,
            timeout=READY_S + 30,
            check=False,
        )

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "KUBECONFIG": str(self._sandbox.kubeconfig)}

    @staticmethod
    def _relative(path: Path) -> str:
        return os.path.relpath(path)

    def _whisper(self, text: str) -> None:
        self._console.print(f"  {text}", style="dim", highlight=False)

    def _title(self, text: str) -> None:
        self._console.print(f"\n[bold]{text}[/bold]", highlight=False)

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)


def _quote(argument: str) -> str:
    return f"'{argument}'" if set(argument) & set(' {}[]()"$?*|') else argument
