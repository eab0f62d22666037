"""The resolver of control-plane binaries: its order, and downloads over a server that misbehaves."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import psutil
import pytest

from sglpool.sandbox import downloads, versions
from sglpool.sandbox.binaries import Resolver, cache_root, version_of
from sglpool.sandbox.downloads import ReleaseDownloads, find_digest
from sglpool.sandbox.errors import SandboxError, SourceUnavailable
from sglpool.sandbox.gobuild import GoBuild
from sglpool.sandbox.versions import Release
from sglpool.sandbox.wheel import ToolsWheel
from support.waiting import wait_until

CONTENT = bytes(range(256)) * 4096


def quiet(_: str) -> None:
    pass


@dataclass
class FakeSource:
    """Has the named programs, and remembers what it was asked for."""

    title: str
    has: Collection[str]
    delay_s: float = 0
    asked: list[list[str]] = field(default_factory=list)

    def provide(self, missing: Collection[str], *, into: Path, say: Callable[[str], None]) -> None:
        self.asked.append(list(missing))
        threading.Event().wait(self.delay_s)
        into.mkdir(parents=True, exist_ok=True)
        for name in set(missing) & set(self.has):
            executable(into / name, self.title)
        if set(missing) - set(self.has):
            raise SourceUnavailable("it has only a few")


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def running(pid: str) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


class ReleaseServer(http.server.ThreadingHTTPServer):
    """Serves files with Range support; can break a transfer half-way."""

    files: dict[str, bytes]
    ranges: list[str]
    breaks: int

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ReleaseHandler)
        self.files, self.ranges, self.breaks = {}, [], 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def offer(self, path: str, content: bytes, *, member: str = "", digest: str = "") -> Release:
        self.files[path] = content
        self.files[f"{path}.sha256"] = (digest or hashlib.sha256(content).hexdigest()).encode()
        return Release(url=self.url + path, checksum_url=f"{self.url}{path}.sha256", member=member)


class ReleaseHandler(http.server.BaseHTTPRequestHandler):
    server: ReleaseServer

    def do_GET(self) -> None:
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        start = 0
        if wanted := self.headers.get("Range"):
            self.server.ranges.append(wanted)
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(content):
                self.send_error(416)
                return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        body = content[start:]
        if self.server.breaks and not self.path.endswith(".sha256"):
            self.server.breaks -= 1
            body = body[: len(body) // 2]
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ReleaseServer]:
    with ReleaseServer() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def no_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads.time, "sleep", lambda _: None)


class TestOrder:
    def test_assets_come_before_the_cache_and_the_cache_before_any_source(self, tmp_path: Path) -> None:
        executable(tmp_path / "assets/etcd", "assets")
        executable(tmp_path / "cache/etcd", "cache")
        executable(tmp_path / "cache/kubectl", "cache")
        source = FakeSource("source", has=["kwok"])
        resolver = Resolver(folder=tmp_path / "cache", assets=tmp_path / "assets", sources=[source])
        found = resolver.ensure(["etcd", "kubectl", "kwok"], say=quiet)
        assert {name: path.read_text() for name, path in found.items()} == {
            "etcd": "assets",
            "kubectl": "cache",
            "kwok": "source",
        }
        assert source.asked == [["kwok"]]

    def test_the_next_source_is_asked_only_for_what_the_first_does_not_have(self, tmp_path: Path) -> None:
        first, second = FakeSource("first", has=["etcd"]), FakeSource("second", has=["etcd", "kwok"])
        third = FakeSource("third", has=[])
        resolver = Resolver(folder=tmp_path / "cache", assets=None, sources=[first, second, third])
        found = resolver.ensure(["etcd", "kwok"], say=quiet)
        assert found["etcd"].read_text() == "first"
        assert (second.asked, third.asked) == ([["kwok"]], [])

    def test_without_any_source_the_error_names_the_programs_and_every_reason(self, tmp_path: Path) -> None:
        sources = [FakeSource("downloads", has=[]), FakeSource("a build", has=["etcd"])]
        resolver = Resolver(folder=tmp_path / "cache", assets=None, sources=sources)
        with pytest.raises(SandboxError) as error:
            resolver.ensure(["etcd", "kwok"], say=quiet)
        assert "no source has kwok" in str(error.value)
        assert "downloads: it has only a few" in str(error.value)
        assert "a build: it has only a few" in str(error.value)

    def test_of_two_callers_at_once_one_waits_and_nothing_is_fetched_twice(self, tmp_path: Path) -> None:
        source = FakeSource("slow", has=["etcd"], delay_s=0.3)
        resolver = Resolver(folder=tmp_path / "cache", assets=None, sources=[source])
        with ThreadPoolExecutor(2) as pool:
            calls = [pool.submit(resolver.ensure, ["etcd"], say=quiet) for _ in range(2)]
            paths = {call.result()["etcd"] for call in calls}
        assert paths == {tmp_path / "cache/etcd"}
        assert source.asked == [["etcd"]]

    def test_the_cache_follows_the_environment(self) -> None:
        assert cache_root({"SGLPOOL_CACHE": "/own", "XDG_CACHE_HOME": "/xdg"}) == Path("/own")
        assert cache_root({"XDG_CACHE_HOME": "/xdg"}) == Path("/xdg/sglpool")
        assert cache_root({}) == Path.home() / ".cache/sglpool"


class TestDownloads:
    def test_a_verified_download_is_published_as_an_executable(self, server: ReleaseServer, tmp_path: Path) -> None:
        source = ReleaseDownloads({"kwok": server.offer("/kwok", CONTENT)}, work=tmp_path / "work")
        source.provide(["kwok", "unknown"], into=tmp_path / "bin", say=quiet)
        assert (tmp_path / "bin/kwok").read_bytes() == CONTENT
        assert (tmp_path / "bin/kwok").stat().st_mode & 0o111
        assert list((tmp_path / "work").iterdir()) == []

    def test_a_program_is_taken_out_of_its_archive(self, server: ReleaseServer, tmp_path: Path) -> None:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            member = tarfile.TarInfo("etcd-v3/etcd")
            member.size = len(CONTENT)
            tar.addfile(member, io.BytesIO(CONTENT))
        release = server.offer("/etcd.tar.gz", buffer.getvalue(), member="etcd-v3/etcd")
        ReleaseDownloads({"etcd": release}, work=tmp_path / "work").provide(["etcd"], into=tmp_path / "bin", say=quiet)
        assert (tmp_path / "bin/etcd").read_bytes() == CONTENT
        assert list((tmp_path / "work").iterdir()) == []

    def test_a_wrong_checksum_is_refused_and_the_file_removed(self, server: ReleaseServer, tmp_path: Path) -> None:
        release = server.offer("/kwok", CONTENT, digest="0" * 64)
        source = ReleaseDownloads({"kwok": release}, work=tmp_path / "work")
        later = FakeSource("later", has=["kwok"])
        resolver = Resolver(folder=tmp_path / "bin", assets=None, sources=[source, later])
        with pytest.raises(SandboxError, match=f"publisher says {'0' * 64}"):
            resolver.ensure(["kwok"], say=quiet)
        assert later.asked == []
        assert not (tmp_path / "bin/kwok").exists()
        assert list((tmp_path / "work").iterdir()) == []

    def test_an_interrupted_download_goes_on_where_it_stopped(self, server: ReleaseServer, tmp_path: Path) -> None:
        release = server.offer("/kwok", CONTENT)
        (tmp_path / "work").mkdir()
        (tmp_path / "work/kwok.part").write_bytes(CONTENT[:1000])
        source = ReleaseDownloads({"kwok": release}, work=tmp_path / "work")
        source.provide(["kwok"], into=tmp_path / "bin", say=quiet)
        assert server.ranges == ["bytes=1000-"]
        assert (tmp_path / "bin/kwok").read_bytes() == CONTENT

    def test_a_part_that_is_complete_is_only_verified(self, server: ReleaseServer, tmp_path: Path) -> None:
        release = server.offer("/kwok", CONTENT)
        (tmp_path / "work").mkdir()
        (tmp_path / "work/kwok.part").write_bytes(CONTENT)
        source = ReleaseDownloads({"kwok": release}, work=tmp_path / "work")
        source.provide(["kwok"], into=tmp_path / "bin", say=quiet)
        assert (tmp_path / "bin/kwok").read_bytes() == CONTENT

    def test_a_connection_that_breaks_is_resumed_within_the_same_run(
        self, server: ReleaseServer, tmp_path: Path
    ) -> None:
        release = server.offer("/kwok", CONTENT)
        server.breaks = 2
        source = ReleaseDownloads({"kwok": release}, work=tmp_path / "work")
        source.provide(["kwok"], into=tmp_path / "bin", say=quiet)
        half = len(CONTENT) // 2
        assert server.ranges == [f"bytes={half}-", f"bytes={half + half // 2}-"]
        assert (tmp_path / "bin/kwok").read_bytes() == CONTENT

    def test_a_host_that_never_answers_is_tried_once_and_the_next_source_used(self, tmp_path: Path) -> None:
        with ReleaseServer() as closed:
            releases = {name: closed.offer(f"/{name}", CONTENT) for name in ("etcd", "kwok")}
        source = ReleaseDownloads(releases, work=tmp_path / "work")
        later = FakeSource("later", has=["etcd", "kwok"])
        said: list[str] = []
        resolver = Resolver(folder=tmp_path / "bin", assets=None, sources=[source, later])
        assert resolver.ensure(["etcd", "kwok"], say=said.append)["kwok"].read_text() == "later"
        assert said == ["release downloads: 127.0.0.1 cannot be reached within 3 s"]

    def test_a_host_that_swallows_packets_is_given_up_at_the_limit(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        over = threading.Event()

        def silence(*_: object, **__: object) -> None:
            over.wait(60)
            raise OSError("nobody answered")

        monkeypatch.setattr(downloads, "CONNECT_LIMIT_S", 0.01)
        monkeypatch.setattr(downloads.socket, "create_connection", silence)
        release = Release(url="http://silent.invalid/kwok", checksum_url="http://silent.invalid/kwok.sha256")
        source = ReleaseDownloads({"kwok": release}, work=tmp_path / "work")
        with pytest.raises(SourceUnavailable, match=r"silent\.invalid cannot be reached"):
            source.provide(["kwok"], into=tmp_path / "bin", say=quiet)
        over.set()

    def test_a_release_that_was_withdrawn_is_a_reason_not_a_crash(self, server: ReleaseServer, tmp_path: Path) -> None:
        release = Release(url=f"{server.url}/gone", checksum_url=f"{server.url}/gone.sha256")
        source = ReleaseDownloads({"kwok": release}, work=tmp_path / "work")
        with pytest.raises(SourceUnavailable, match="answers HTTP 404"):
            source.provide(["kwok"], into=tmp_path / "bin", say=quiet)


class TestChecksumDocuments:
    def test_a_bare_digest(self) -> None:
        assert find_digest("abc123\n", filename="kubectl") == "abc123"

    def test_a_list_of_digests_and_names(self) -> None:
        text = "aaa  etcd-arm64.tar.gz\nbbb *etcd-amd64.tar.gz\n"
        assert find_digest(text, filename="etcd-amd64.tar.gz") == "bbb"

    def test_a_release_description_with_asset_digests(self) -> None:
        assets = [
            {"name": "kwok-linux-arm64", "digest": "sha256:aaa"},
            {"name": "kwok-linux-amd64", "digest": "sha256:bbb"},
        ]
        assert find_digest(json.dumps({"assets": assets}), filename="kwok-linux-amd64") == "bbb"

    @pytest.mark.parametrize("text", ["aaa  other\nbbb  another\n", '{"assets": [{"name": "kwok", "digest": null}]}'])
    def test_a_file_that_is_not_listed_is_never_taken_unverified(self, text: str) -> None:
        with pytest.raises(SourceUnavailable, match="no SHA-256 is published for kwok"):
            find_digest(text, filename="kwok")


class TestOtherSources:
    def test_without_go_one_sentence_says_what_to_install(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(SourceUnavailable, match=r"`go` is not on PATH; install Go 1\.26 or newer"):
            GoBuild(work=tmp_path).provide(["etcd"], into=tmp_path / "bin", say=quiet)

    def test_an_old_go_is_named_with_its_version(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        executable(tmp_path / "go", "#!/bin/sh\necho go1.24.4\n")
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        with pytest.raises(SourceUnavailable, match=r"is Go 1\.24\.4; 1\.26 or newer is needed"):
            GoBuild(work=tmp_path).provide(["kwok"], into=tmp_path / "bin", say=quiet)

    def test_the_build_failing_is_an_error_that_quotes_the_compiler(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        script = "#!/bin/sh\n[ $1 = env ] && { echo go1.26.8; exit; }\necho disk is full >&2\nexit 1\n"
        executable(tmp_path / "go", script)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        with pytest.raises(SandboxError, match=r"(?s)kwok: .* failed:.*disk is full"):
            GoBuild(work=tmp_path).provide(["kwok"], into=tmp_path / "bin", say=quiet)

    @pytest.mark.parametrize("moment", ["at once", "later"])
    def test_an_interrupt_ends_the_build_with_everything_it_started(self, tmp_path: Path, moment: str) -> None:
        script = f"""#!/bin/sh
            [ $1 = env ] && {{ echo go1.26.8; exit; }}
            [ "{moment}" = later ] || kill -INT $PPID
            sleep 600 & echo $$ $! > {tmp_path}/started.new
            mv {tmp_path}/started.new {tmp_path}/started
            [ "{moment}" = later ] && echo k8s.io/a >&2 && sleep 0.2 && kill -INT $PPID
            wait"""
        executable(tmp_path / "go", script)
        # Of a test run in the background every child ignores SIGINT, unless told otherwise.
        code = f"""if True:
            import signal
            from pathlib import Path
            from sglpool.sandbox.gobuild import GoBuild
            signal.signal(signal.SIGINT, signal.default_int_handler)
            GoBuild(work=Path({str(tmp_path)!r})).provide(["kwok"], into=Path("unused"), say=print)"""
        environment = {**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin"}
        command = [sys.executable, "-c", code]
        build = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
        assert build.returncode == -signal.SIGINT, build.stderr
        started = tmp_path / "started"  # absent when the compiler was killed before it got so far
        pids = started.read_text().split() if started.exists() else []
        # A killed grandchild is reaped by init, a moment later.
        wait_until(lambda: not any(map(running, pids)), timeout_s=10, describe=f"{pids} are gone")

    def test_an_interrupt_right_after_the_start_ends_the_build_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        executable(tmp_path / "go", "#!/bin/sh\n[ $1 = env ] && { echo go1.26.8; exit; }\nexec sleep 600\n")
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        before = set(psutil.Process().children())

        def interrupted(_timer: threading.Timer) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(threading.Timer, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            GoBuild(work=tmp_path).provide(["kwok"], into=tmp_path / "bin", say=quiet)
        assert set(psutil.Process().children()) == before

    def test_sources_leave_programs_alone_that_they_do_not_know(self, tmp_path: Path) -> None:
        ToolsWheel(work=tmp_path).provide(["etcd"], into=tmp_path / "bin", say=quiet)
        GoBuild(work=tmp_path).provide(["helm", "kubectl"], into=tmp_path / "bin", say=quiet)
        assert not (tmp_path / "bin").exists()

    def test_on_another_architecture_the_wheel_says_so(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sglpool.sandbox.wheel.architecture", lambda: "arm64")
        with pytest.raises(SourceUnavailable, match="linux/amd64 only, this machine is arm64"):
            ToolsWheel(work=tmp_path).provide(["kubectl"], into=tmp_path / "bin", say=quiet)


class TestVersions:
    def test_the_module_built_from_source_pins_the_versions_of_the_table(self) -> None:
        module = (resources.files("sglpool.sandbox") / "controlplane/go.mod").read_text()
        words = [line.split() for line in module.splitlines()]
        pins = {row[-2]: row[-1] for row in words if len(row) >= 2 and row[-1] != "indirect"}
        pins |= {row[0]: row[1] for row in words if len(row) == 4 and row[-1] == "indirect"}
        assert pins["k8s.io/kubernetes"] == f"v{versions.KUBERNETES}"
        assert pins["go.etcd.io/etcd/server/v3"] == f"v{versions.ETCD}"
        assert pins["k8s.io/apiserver"] == f"v0.{versions.KUBERNETES.removeprefix('1.')}"

    def test_every_program_has_a_release(self) -> None:
        assert set(versions.releases()) == set(versions.EVERYTHING)

    @pytest.mark.parametrize(
        ("output", "version"),
        [
            ("Kubernetes v1.37.2", "v1.37.2"),
            ("etcd Version: 3.7.3\nGit SHA: abc", "v3.7.3"),
            ("kwok version v0.8.0 go1.26.8 (linux/amd64)", "v0.8.0"),
            ("v4.3.1+g123456", "v4.3.1"),
        ],
    )
    def test_versions_are_read_from_the_programs_themselves(self, tmp_path: Path, output: str, version: str) -> None:
        executable(tmp_path / "program", f"#!/bin/sh\nprintf '{output}'\n")
        assert version_of("etcd", tmp_path / "program") == version

    def test_a_program_for_another_machine_is_reported_as_such(self, tmp_path: Path) -> None:
        executable(tmp_path / "etcd", "\x7fELF not for us")
        with pytest.raises(SandboxError, match="does not run here"):
            version_of("etcd", tmp_path / "etcd")
