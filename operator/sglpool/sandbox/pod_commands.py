"""`sglpool sandbox logs`, `endpoint`, `chat` and `fault`: see a pod's log, talk to a pool, let something go wrong."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from sglpool.sandbox.apiserver import ApiServer, Manifest
from sglpool.sandbox.chat import Turn, stream_chat
from sglpool.sandbox.cluster import Sandbox
from sglpool.sandbox.errors import SandboxError
from sglpool.sandbox.nodeagent.files import faults_path, write_file
from sglpool.sandbox.nodeagent.logreader import follow, log_files
from sglpool.sandbox.terminal import DEFAULT_FOLDER, OUT, Folder, say, told_plainly

Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Namespace of the pod.")]
PodName = Annotated[str, typer.Argument(help="Name of the pod.")]
_POOL_LABEL = "sglpool.io/pool"


def logs(
    pod: PodName,
    follow_on: Annotated[bool, typer.Option("--follow", "-f", help="Go on as the log grows.")] = False,
    container: Annotated[str, typer.Option("--container", "-c", help="The pod's first container unless named.")] = "",
    previous: Annotated[bool, typer.Option("--previous", "-p", help="Of the container before its restart.")] = False,
    namespace: Namespace = "default",
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Print a container's log; also after its pod is gone."""
    with told_plainly(on_interrupt=""):
        sandbox = Sandbox(folder)
        name = container or _first_container(sandbox.api, namespace, pod)
        files = log_files(sandbox.folder, namespace, pod, name)
        if previous:
            files = files[:-1]
        if not files:
            raise SandboxError(f"there is no {'previous ' * previous}log of container {name} in pod {namespace}/{pod}")
        for text in follow(files[-1]) if follow_on else [files[-1].read_bytes()]:
            OUT.file.write(text.decode(errors="replace"))
            OUT.file.flush()


def endpoint(
    target: Annotated[str, typer.Argument(help="A pool, or one of its pods.")],
    namespace: Namespace = "default",
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Print the base URL of a pool's OpenAI API, as this machine reaches it."""
    with told_plainly():
        OUT.print(f"http://{pod_address(ready_pod(Sandbox(folder).api, namespace, target))}/v1", soft_wrap=True)


def chat(
    target: Annotated[str, typer.Argument(help="A pool, or one of its pods.")],
    text: Annotated[str, typer.Argument(help="What to say.")] = "Write a function that reverses a list.",
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of the answer.")] = 200,
    session: Annotated[str, typer.Option(help="Session id, by which the router keeps a conversation together.")] = "",
    api_key: Annotated[str, typer.Option(envvar="OPENAI_API_KEY", help="Where the pool asks for one.")] = "",
    namespace: Namespace = "default",
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Send one streaming request to a pool's router, or to one of its pods, and watch the tokens come."""
    with told_plainly(on_interrupt=""):
        pod = ready_pod(Sandbox(folder).api, namespace, target)
        say(f"asking pod {pod['metadata']['name']} at {pod_address(pod)}")
        messages = [{"role": "user", "content": text}]
        turn = Turn(messages=messages, max_tokens=max_tokens, api_key=api_key, session=session)
        reply = stream_chat(pod_address(pod), turn, on_text=lambda part: OUT.print(part, end="", markup=False))
        OUT.print()
        say(reply.summary())


def fault(
    pod: PodName,
    hang: Annotated[bool, typer.Option(help="Requests hang before the scheduler; /health stays green.")] = False,
    stall: Annotated[bool, typer.Option(help="The GPU computes nothing: what runs stays and gets no token.")] = False,
    accept_length: Annotated[float | None, typer.Option(min=1, help="Tokens per verification step.")] = None,
    prefill_slowdown: Annotated[float | None, typer.Option(min=1, help="Prefill takes so many times longer.")] = None,
    gpu_lost: Annotated[bool, typer.Option(help="A GPU falls off the bus: the engine dies.")] = False,
    oom: Annotated[bool, typer.Option(help="The GPU's memory runs out: the engine dies.")] = False,
    clear: Annotated[bool, typer.Option(help="End every fault of the pod.")] = False,
    namespace: Namespace = "default",
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Let something go wrong in one pod's engine; each call replaces the faults before it."""
    faults = {
        "hang": hang,
        "stall": stall,
        "accept_length": accept_length,
        "prefill_slowdown": prefill_slowdown,
        "gpu_lost": gpu_lost,
        "crash": "oom" if oom else "",
    }
    wrong = {name: value for name, value in faults.items() if value}
    with told_plainly():
        if bool(wrong) == clear:
            raise SandboxError("say which fault, or --clear and no fault")
        sandbox = Sandbox(folder)
        manifest = _get_pod(sandbox.api, namespace, pod)
        write_file(faults_path(sandbox.folder, manifest), json.dumps(wrong).encode())
        say(f"pod {pod}: " + (", ".join(f"{name} {value}" for name, value in wrong.items()) or "no fault"))


def pod_address(pod: Manifest) -> str:
    """Address and port under which a pod's first named port answers."""
    ports = [port for container in pod["spec"]["containers"] for port in container.get("ports", [])]
    if not ports:
        raise SandboxError(f"pod {pod['metadata']['name']} has no port")
    return f"{pod['status']['podIP']}:{ports[0]['containerPort']}"


def _first_container(api: ApiServer, namespace: str, pod: str) -> str:
    """The container that `kubectl logs` would take; the engine when the pod is gone."""
    try:
        manifest = _get_pod(api, namespace, pod)
    except SandboxError:
        return "engine"
    annotated = manifest["metadata"].get("annotations", {}).get("kubectl.kubernetes.io/default-container")
    name: str = annotated or manifest["spec"]["containers"][0]["name"]
    return name


def _get_pod(api: ApiServer, namespace: str, name: str) -> Manifest:
    return api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")


def ready_pod(api: ApiServer, namespace: str, target: str) -> Manifest:
    """The pod to talk to: the one that is named, else a Ready router of the pool, else a Ready engine.

    Raises:
        SandboxError: There is no such pool or pod, or nothing of it is Ready.
    """
    listing = api.get(f"/api/v1/namespaces/{namespace}/pods?labelSelector={_POOL_LABEL}")
    pods: list[Manifest] = [
        pod for pod in listing["items"] if target in (pod["metadata"]["name"], pod["metadata"]["labels"][_POOL_LABEL])
    ]
    by_component = [
        sorted((pod for pod in pods if _component(pod) == component), key=lambda pod: str(pod["metadata"]["name"]))
        for component in ("router", "engine")
    ]
    found = next(filter(None, by_component), None)
    if not found:
        raise SandboxError(f"{namespace} has no pool and no pod of a pool named {target}")
    for pod in found:
        if any(item["type"] == "Ready" and item["status"] == "True" for item in pod["status"].get("conditions", [])):
            return pod
    raise SandboxError(f"no {_component(found[0])} pod of {target} is Ready yet: kubectl get pods -n {namespace}")


def _component(pod: Manifest) -> str:
    component: str = pod["metadata"]["labels"].get("app.kubernetes.io/component", "")
    return component
