"""A pool with everything switched on, its clients, and a Prometheus that scrapes it as `docs/metrics.md` says.

Not here: what is asked of it (`test_live`).
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from observability.live.secrets import API_KEY
from sglpool.sandbox.cluster import Sandbox
from support.agents import at_work
from support.kubectl import Kubectl
from support.pool_on_cluster import ClusterPool, small_pool
from support.streaming import CHAT, SESSION

Json = dict[str, Any]
ROOT = Path(__file__).parents[3]
MODEL = "deepseek-v3.2"
FIRST_WORDS = "\n".join(f"line {number}: the quick brown fox jumps over the lazy dog" for number in range(400))
MOST_TURNS = 30
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def manifest(store_url: str) -> Json:
    """Speculation, HiCache, an autoscaler, two routers with a store, keys and TLS."""
    return small_pool(
        "watched",
        model={
            "name": MODEL,
            "profile": "deepseek-v3.2-nvfp4",
            "source": {
                "huggingFace": {
                    "repo": "nvidia/DeepSeek-V3.2-NVFP4",
                    "revision": "0" * 40,
                    "tokenSecret": {"name": "hub", "key": "token"},
                }
            },
        },
        tensorParallelSize=4,
        kvCache={"hiCache": {"size": "200G"}},
        speculative={"algorithm": "NEXTN"},
        engine={
            "warmup": {"promptTokens": 2000},
            "env": [{"name": "SITE_SECRET", "valueFrom": {"secretKeyRef": {"name": "engine", "key": "value"}}}],
        },
        autoscaling={"minReplicas": 2, "maxReplicas": 2},
        router={
            "replicas": 2,
            "auth": {"apiKeysSecret": {"name": "api-keys"}},
            "tls": {"secret": {"name": "tls"}},
            "sessionStore": {
                "valkey": {"url": store_url, "passwordSecret": {"name": "store", "key": "password"}},
            },
        },
    )


class Watched:
    """The pool, and who asks it."""

    def __init__(self, sandbox: Sandbox, kubectl: Kubectl, pool: ClusterPool) -> None:
        self.sandbox = sandbox
        self.kubectl = kubectl
        self.pool = pool
        self.answers: Counter[int | str] = Counter()
        self._tls = ssl.create_default_context()
        self._tls.check_hostname = False
        self._tls.verify_mode = ssl.CERT_NONE

    def routers(self) -> list[Json]:
        """Its router pods."""
        labels = f"sglpool.io/pool={self.pool.name},app.kubernetes.io/component=router"
        found: list[Json] = self.kubectl.json("get", "pods", "-n", self.pool.namespace, "-l", labels)["items"]
        return found

    def ask(self, address: str, session: str, body: Json, **headers: str) -> tuple[int, str]:
        """One request; status and body."""
        connection = http.client.HTTPSConnection(address, 8000, timeout=60, context=self._tls)
        own = {SESSION: session, "authorization": f"Bearer {API_KEY}", "traceparent": TRACE, **headers}
        try:
            connection.request("POST", CHAT, json.dumps(body), {"content-type": "application/json", **own})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    @contextmanager
    def busy(self, agents: int) -> Iterator[None]:
        """So many agents, each a conversation that grows, one turn after the other."""
        addresses = [pod["status"]["podIP"] for pod in self.routers()]
        work = [partial(self._agent, addresses[n % len(addresses)], f"agent-{n}") for n in range(agents)]
        with at_work(work):
            yield

    def _agent(self, address: str, session: str, over: threading.Event) -> None:
        messages: list[Json] = []
        turn = 0
        while not over.is_set():
            turn += 1
            if turn % MOST_TURNS == 1:
                messages = [{"role": "user", "content": f"{session}, {turn}\n{FIRST_WORDS}"}]
            body = {
                "model": MODEL,
                "messages": messages,
                "max_tokens": 400,
                "ignore_eos": True,
                "stream": turn % 2 == 0,
            }
            try:
                status, text = self.ask(address, session, body)
            except OSError as error:
                self.answers[type(error).__name__] += 1
                continue
            self.answers[status] += 1
            said = "and so on"
            if status == 200 and not body["stream"]:
                with suppress(ValueError, LookupError):
                    said = json.loads(text)["choices"][0]["message"]["content"]
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": f"turn {turn}"}]

    def jobs(self) -> list[Json]:
        """The scrape configuration of the docs, with what Prometheus' discovery would find here.

        Not every build of Prometheus has that discovery. The operator is a process here, and stands in as a pod.
        """
        (text,) = re.findall(r"```yaml\n(scrape_configs:.*?)```", (ROOT / "docs/metrics.md").read_text(), re.DOTALL)
        jobs: list[Json] = yaml.safe_load(text)["scrape_configs"]
        found = list(self._discovered())
        for job in jobs:
            assert job.pop("kubernetes_sd_configs") == [{"role": "pod"}]
            job["static_configs"] = found
        return jobs

    def _discovered(self) -> Iterator[Json]:
        labels = {"app.kubernetes.io/name": "sglpool", "app.kubernetes.io/component": "operator"}
        yield _target("sglpool-operator-0", self.operator_address, "http", labels)
        for pod in [*self.routers(), *self.pool.pods().values()]:
            metadata, ip = pod["metadata"], pod["status"]["podIP"]
            for container in pod["spec"]["containers"]:
                for port in container.get("ports", []):
                    yield _target(metadata["name"], f"{ip}:{port['containerPort']}", port["name"], metadata["labels"])

    @property
    def operator_address(self) -> str:
        """Of its HTTP endpoints."""
        return f"127.0.0.1:{self.sandbox._state()['ports']['operator']}"


def _target(pod: str, address: str, port: str, labels: dict[str, str]) -> Json:
    """One container's port in the words of Prometheus' discovery of pods."""
    meta = {"namespace": "default", "pod_name": pod, "pod_container_port_name": port}
    meta |= {f"pod_label_{re.sub('[^a-zA-Z0-9]', '_', name)}": value for name, value in labels.items()}
    return {"targets": [address], "labels": {f"__meta_kubernetes_{name}": value for name, value in meta.items()}}
