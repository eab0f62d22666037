"""Fixtures that every ring shares. A cluster is a kubeconfig and nothing else.

The kubeconfig is `$KUBECONFIG` when `SGLPOOL_TEST_KUBECONFIG` is set (to run the suite against a cluster that
is there already: a sandbox, kind, any other with fake GPU nodes); else a sandbox of plain processes for the
session.
"""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from sglpool.sandbox import binaries
from sglpool.sandbox.cluster import Sandbox
from sglpool.sandbox.versions import EVERYTHING
from support.gitops import GitOps, gitops_program
from support.helm import helm_binary
from support.kubectl import Kubectl

NODES = {"B200": 4, "B300": 2}

# The same examples in every run of CI, so that a red build is about the change; new ones on a developer's machine.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None)
hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--regenerate` writes golden files and made pages anew; look at the diff before you commit it."""
    parser.addoption("--regenerate", action="store_true", help="write the golden files from what is rendered now")


@pytest.fixture
def regenerate(request: pytest.FixtureRequest) -> bool:
    """Whether to write the golden files instead of comparing with them."""
    return bool(request.config.getoption("--regenerate"))


def pytest_sessionstart() -> None:
    """A terminated run takes its processes along, as an interrupted one does.

    A run in the background of a shell ignores SIGINT; its children would too, and tests send it to them.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Have the binaries before the first test: a build takes longer than a test may."""
    if session.config.option.collectonly:
        return

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        if any(_needs_binaries(item) for item in session.items):
            binaries.ensure(EVERYTHING, say=say)
        if any({"helm", "helm4"} & {*getattr(item, "fixturenames", ())} for item in session.items):
            for major in (3, 4):
                helm_binary(major, say=say)
        if any("gitops" in getattr(item, "fixturenames", ()) for item in session.items):
            gitops_program(say=say)


def _needs_binaries(item: pytest.Item) -> bool:
    fixtures = getattr(item, "fixturenames", ())
    return item.get_closest_marker("controlplane") is not None or "kubeconfig" in fixtures


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The way to a cluster with fake B200 and B300 nodes, for the whole session."""
    if os.environ.get("SGLPOOL_TEST_KUBECONFIG"):
        yield Path(os.environ["KUBECONFIG"])
        return
    sandbox = Sandbox(tmp_path_factory.mktemp("cluster") / "sandbox")
    sandbox.up(NODES)
    yield sandbox.kubeconfig
    sandbox.down()


@pytest.fixture(scope="session")
def kubectl(kubeconfig: Path) -> Kubectl:
    """`kubectl("get", "pods")` against the session's cluster; returns what it printed."""
    path = binaries.ensure(["kubectl"], say=lambda _: None)["kubectl"]
    return Kubectl(binary=path, kubeconfig=kubeconfig)


@pytest.fixture(scope="session")
def gitops() -> GitOps:
    """What Argo CD and Flux make of an object."""
    return GitOps(gitops_program())


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    """A namespace of the test's own, in which pods can be created; deleted afterwards, without waiting."""
    name = f"test-{uuid.uuid4().hex[:10]}"
    kubectl.create_namespace(name)
    yield name
    kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")
