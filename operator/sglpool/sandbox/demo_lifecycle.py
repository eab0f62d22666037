"""Chapters of a pool's life without load: applied, spoken to, changed badly, deleted.

Each is what a user would type, and ends with an error when it does not go as told. Not here: agents (`demo_load`).
"""

from __future__ import annotations

from typing import Any

import yaml

from sglpool.sandbox.chat import Reply, Turn, stream_chat
from sglpool.sandbox.demo_conversation import first_turn, tool_result
from sglpool.sandbox.demo_pool import FEWEST, FIRST_TYPE_MOST, MOST
from sglpool.sandbox.demo_scene import POOL, READY_S, SPEED, START_SPEED, Scene, relative
from sglpool.sandbox.errors import SandboxError
from sglpool.sandbox.report_data import State

DELETED_S = 120.0


def create(scene: Scene, pool: dict[str, Any]) -> None:
    """Apply the pool and wait until it is Ready."""
    scene.stage.title(f"Apply a pool: Kimi K2.6 on four B200s a replica, {FEWEST} to {MOST} replicas")
    manifest = scene.folder / "run" / "pool.yaml"
    manifest.write_text(yaml.safe_dump(pool, sort_keys=False))
    scene.stage.say(
        f"The sample of the project, but autoscaled: at most {FIRST_TYPE_MOST} replicas on B200, the others on B300."
    )
    scene.show.chapter("The pool is applied")
    scene.stage.kubectl("apply", "-f", relative(manifest))
    scene.stage.say(
        "The operator sizes it and writes its StatefulSets; the scheduler finds nodes; the agent starts the pods. "
        "Each fetches and verifies 595 GB of (simulated) weights, loads them, and warms up. In life that takes a "
        f"quarter of an hour, here {15 * 60 / START_SPEED:.0f} seconds and a few more for the probes."
    )
    scene.wait_ready()
    scene.show.chapter(f"Ready with {FEWEST} replicas")
    scene.stage.kubectl("get", "sglpool")
    scene.stage.kubectl("get", "statefulsets,pods", "-o", "wide")
    scene.stage.say("Two replicas of 4 GPUs share one 8-GPU node, so that whole nodes stay free for others.")


def talk(scene: Scene) -> None:
    """Two turns of one conversation; the second must find the first in the cache."""
    scene.stage.title("A coding agent's conversation, through the pool's router")
    address = scene.address()
    scene.stage.say(
        "Envoy moves the bytes, a picker beside it decides which replica gets a conversation, and remembers."
    )
    messages = first_turn()
    scene.stage.say(f"First turn, to http://{address}/v1: system prompt, tools and a repository's files.")
    reply = _turn(scene, address, messages)
    messages += [{"role": "assistant", "content": reply.text}, *tool_result()]
    scene.stage.say("Second turn: all of the first, the answer, and what a tool said. Its KV cache is still there:")
    again = _turn(scene, address, messages)
    if again.cached_tokens < 0.9 * again.prompt_tokens:
        raise SandboxError(f"the second turn found only {again.cached_tokens} of its tokens in the cache")
    scene.stage.say(
        f"In life the first answer would have begun after {SPEED * reply.first_token_s:.1f} s of prefill on four "
        f"B200s. The second had {again.prompt_tokens - again.cached_tokens} tokens left to prefill. That is why a "
        "conversation must stay where its cache is."
    )


def _turn(scene: Scene, address: str, messages: list[dict[str, Any]]) -> Reply:
    shown: list[str] = []
    reply = stream_chat(address, Turn(messages=messages, max_tokens=120, session="demo"), on_text=shown.append)
    scene.stage.show(f"{reply.text[:120]}...", "green")
    scene.stage.show(reply.summary(), "bold")
    return reply


def refuse(scene: Scene) -> None:
    """Changes that the API server does not take."""
    scene.stage.title("A bad change is refused at once, by the API server")
    scene.patch('{"spec":{"tensorParallelSize":3}}', refused=True)
    scene.patch('{"spec":{"engine":{"extraArgs":["--tp-size=8"]}}}', refused=True)


def infeasible(scene: Scene) -> None:
    """A change that is taken and not carried out, and taken back."""
    scene.stage.title("A change that cannot fit is accepted, explained, and not carried out")
    scene.show.chapter("A change that cannot fit: explained, not carried out")
    scene.stage.say("With two GPUs a replica instead of four, the weights alone would be larger than a GPU.")
    serving = [replica.pod for replica in scene.show.now.replicas if replica.state is State.SERVING]
    before = scene.uids(serving)
    scene.patch('{"spec":{"tensorParallelSize":2}}')
    scene.stage.kubectl("wait", f"sglpool/{POOL}", "--for=condition=Feasible=False", f"--timeout={READY_S:.0f}s")
    message = '-o=jsonpath={.status.conditions[?(@.type=="Feasible")].message}{"\\n"}'
    scene.stage.kubectl("get", f"sglpool/{POOL}", message)
    scene.stage.kubectl("get", "sglpool")
    if scene.uids(serving) != before:
        raise SandboxError("the infeasible change touched running pods")
    scene.stage.say("Both replicas run on, untouched. Taking the change back makes the pool Ready again:")
    scene.patch('{"spec":{"tensorParallelSize":4}}')
    scene.wait_ready()


def delete(scene: Scene) -> None:
    """Delete the pool and wait until nothing is left of it."""
    scene.stage.title("Delete it: nothing stays behind")
    scene.show.chapter("The pool is deleted")
    scene.show.stop()
    scene.stage.figures = str
    scene.stage.kubectl("delete", "sglpool", POOL)
    scene.stage.say(
        "Kubernetes' garbage collector removes the children; of a CRD this young it learns within 30 seconds."
    )
    selector = f"sglpool.io/pool={POOL}"
    kinds = "statefulsets,deployments,pods,services,serviceaccounts,configmaps,poddisruptionbudgets"
    scene.stage.until(
        lambda: not scene.stage.kubectl("get", kinds, "-l", selector, "-o", "name", hide=True),
        "objects of the pool are still there",
        limit_s=DELETED_S,
    )
    scene.stage.kubectl("get", kinds, "-l", selector)
