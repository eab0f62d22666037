"""`sglpool sandbox logs`, `chat` and `fault`: one pod's log, one request by hand, one thing going wrong."""

from __future__ import annotations

import json
import time
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
_ENGINE = "sglpool.io/pool,app.kubernetes.io/component=engine"


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


def chat(
    target: Annotated[str, typer.Argument(help="A pool, or one of its pods.")],
    text: Annotated[str, typer.Argument(help="What to say.")] = "Write a function that reverses a list.",
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of the answer.")] = 200,
    api_key: Annotated[str, typer.Option(envvar="OPENAI_API_KEY", help="Where the engine asks for one.")] = "",
    namespace: Namespace = "default",
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Send one streaming request to a Ready pod and watch the tokens come."""
    with told_plainly(on_interrupt=""):
        pod = _ready_pod(Sandbox(folder).api, namespace, target)
        say(f"asking pod {pod['metadata']['name']} at {pod['status']['podIP']}")
        turn = Turn(messages=[{"role": "user", "content": text}], max_tokens=max_tokens, api_key=api_key)
        reply = stream_chat(pod_address(pod), turn, on_text=lambda part: OUT.print(part, end="", markup=False))
        OUT.print()
        say(reply.summary())


def fault(
    pod: PodName,
    hang: Annotated[bool, typer.Option(help="Requests hang before the scheduler; /health stays green.")] = False,
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


def wait_for_pod(api: ApiServer, namespace: str, target: str, *, limit_s: float) -> Manifest:
    """A Ready pod of a pool, waited for."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            return _ready_pod(api, namespace, target)
        except SandboxError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)


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


def _ready_pod(api: ApiServer, namespace: str, target: str) -> Manifest:
    listing = api.get(f"/api/v1/namespaces/{namespace}/pods?labelSelector={_ENGINE}")
    pods: list[Manifest] = [
        pod for pod in listing["items"] if target in (pod["metadata"]["name"], pod["metadata"]["labels"][_POOL_LABEL])
    ]
    if not pods:
        raise SandboxError(f"{namespace} has no pool and no engine pod named {target}")
    for pod in sorted(pods, key=lambda pod: pod["metadata"]["name"]):
        if any(item["type"] == "Ready" and item["status"] == "True" for item in pod["status"].get("conditions", [])):
            return pod
    raise SandboxError(f"none of the {len(pods)} pods of {target} is Ready yet: kubectl get pods -n {namespace}")
