"""`sglpool router show`: states of several routers as one table, and what is said when a router cannot be read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from sglpool.api import names
from sglpool.cli.app import app
from sglpool.cli.router_table import cells, headline, rows

Json = dict[str, Any]


def replica(pod: str, **changes: Any) -> Json:
    return {
        "uid": f"uid-{pod}", "pod": pod, "address": "10.0.0.1:30000", "gpu": "B200", "ready": True, "healthy": True,
        "draining": False, "terminating": False, "unproven": False, "refused": False, "load": 2.0, "in_flight": 2,
        "queued": 0, "max_concurrent": 28, "kv_used_tokens": 200_000, "kv_total_tokens": 500_000, "conversations": 5,
        "idle": False, "last_poll_age_s": 0.5, **changes,
    }  # fmt: skip


def state(*replicas: Json, **changes: Any) -> Json:
    store = {"configured": False, "available": True}
    return {"pool": "kimi", "router": "r", "replicas": list(replicas), "conversations": 7, "store": store, **changes}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["router", "show", *arguments])


def test_requests_and_conversations_of_routers_add_up_and_the_freshest_poll_speaks_for_the_engine() -> None:
    first = state(replica("b", in_flight=2, conversations=5, queued=9, kv_used_tokens=1, last_poll_age_s=3.0))
    second = state(replica("b", in_flight=3, conversations=1, queued=1, kv_used_tokens=2), replica("a"))
    a, b = rows([first, second])
    assert (a.pod, b.pod) == ("a", "b")
    assert (b.in_flight, b.conversations, b.queued, b.kv_used_tokens) == (5, 6, 1, 2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "serving"),
        ({"draining": True}, "draining"),
        ({"draining": True, "idle": True}, "draining, idle"),
        ({"refused": True}, "full"),
        ({"healthy": False, "ready": True}, "unhealthy"),
        ({"healthy": False, "ready": False}, "not ready"),
        ({"unproven": True}, "unproven"),
    ],
)
def test_a_row_says_what_is_special(changes: Json, words: str) -> None:
    [row] = rows([state(replica("a", **changes))])
    assert cells(row)[-1] == words


def test_a_replica_is_idle_only_if_every_router_says_so() -> None:
    [row] = rows([state(replica("a", idle=True)), state(replica("a", idle=False))])
    assert "idle" not in row.states


def test_an_engine_that_was_never_polled_has_no_kv() -> None:
    [row] = rows([state(replica("a", kv_used_tokens=0, kv_total_tokens=0, last_poll_age_s=None))])
    assert cells(row)[5:7] == ("-", "-")


def test_the_headline_tells_of_an_unreachable_store() -> None:
    store = {"configured": True, "available": False}
    assert "store reached by 0 of 1" in headline("kimi", [state(store=store)])
    assert "store" not in headline("kimi", [state()])


class _Server(ThreadingHTTPServer):
    """An API server and a router at once: the pool, its router pods, and the proxied state."""

    pods: tuple[str, ...] = ("kimi-router-a", "kimi-router-b")
    broken: frozenset[str] = frozenset()

    def answer(self, path: str) -> tuple[int, Json]:
        path = path.partition("?")[0].replace("%3A", ":")
        if path.endswith("/inferencepools/kimi"):
            return 200, {"kind": "InferencePool", "metadata": {"name": "kimi"}}
        if path.endswith("/pods"):
            metadata = {"namespace": "serving", "labels": names.component_selector("kimi", "router")}
            return 200, {"items": [{"metadata": {"name": name, **metadata}} for name in self.pods]}
        for name in self.pods:
            if path.endswith(f"/pods/{name}:9000/proxy/state") and name not in self.broken:
                return 200, state(replica("kimi-b200-0"), router=name)
        if path == "/state":
            return 200, state(replica("kimi-b200-0"))
        return 404, {"kind": "Status", "status": "Failure", "message": "not found", "reason": "NotFound", "code": 404}


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        code, body = self.server.answer(self.path)
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server(("127.0.0.1", 0), _Handler) as found:
        thread = Thread(target=found.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield found
        found.shutdown()
        thread.join(5)


@pytest.fixture
def kubeconfig(server: _Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("kube") / "config"
    url = f"http://127.0.0.1:{server.server_port}"
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": url}}], "users": [{"name": "c", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    }  # fmt: skip
    path.write_text(json.dumps(config))
    return str(path)


def test_every_router_is_read_through_the_api_server(server: _Server, kubeconfig: str) -> None:
    answer = run("kimi", "-n", "serving", "--kubeconfig", kubeconfig)
    assert answer.exit_code == 0, answer.stderr
    assert "2 routers" in answer.stdout
    [row] = [line.split() for line in answer.stdout.splitlines() if line.startswith("kimi-b200-0")]
    assert row == ["kimi-b200-0", "B200", "2.0", "4/28", "0", "200,000", "40%", "10", "serving"]
    both = json.loads(run("kimi", "-n", "serving", "--kubeconfig", kubeconfig, "-o", "json").stdout)
    assert [one["router"] for one in both] == ["kimi-router-a", "kimi-router-b"]


def test_a_router_that_cannot_be_read_is_named_and_the_others_are_shown(server: _Server, kubeconfig: str) -> None:
    server.broken = frozenset({"kimi-router-b"})
    answer = run("kimi", "-n", "serving", "--kubeconfig", kubeconfig)
    assert answer.exit_code == 1
    assert "kimi-router-b" in answer.stderr
    assert "kimi-b200-0" in answer.stdout


@pytest.mark.parametrize(("pool", "words"), [("nonesuch", "no pool nonesuch"), ("kimi", "no router pod")])
def test_without_a_router_to_ask_it_says_why(server: _Server, kubeconfig: str, pool: str, words: str) -> None:
    server.pods = ()
    answer = run(pool, "-n", "serving", "--kubeconfig", kubeconfig)
    assert answer.exit_code == 2
    assert words in answer.stderr


def test_a_router_behind_a_port_forward_is_asked_by_url(server: _Server) -> None:
    answer = run("kimi", "--url", f"http://127.0.0.1:{server.server_port}/")
    assert answer.exit_code == 0
    assert "kimi-b200-0" in answer.stdout
    wrong = run("kimi", "--url", f"http://127.0.0.1:{server.server_port}/nonesuch")
    assert wrong.exit_code == 1
    assert "404" in wrong.stderr
