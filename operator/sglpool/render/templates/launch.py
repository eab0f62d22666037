#!/usr/bin/env python3
"""Runs the SGLang server as PID 1 of the engine container: start, warm-up, drain, final kill.

Usage: launch.py sglang serve --model-path ... (the server's whole command line). Settings: config.json
beside this file.

SGLang as PID 1 loses a SIGTERM while it loads, has no limit for its drain, and does not exit while a client
stays connected. So this script holds the deadlines: SIGTERM before the warm marker kills at once; after it,
SIGTERM goes to the server process alone (its ranks must finish their work), and what is left after the drain
time is killed. It ends with the server's exit code, 128 + n for signal n.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglpool.render.templates import sglpool_engine as engine
    from sglpool.render.templates import warm_up
else:  # in the pod the scripts lie side by side
    import sglpool_engine as engine
    import warm_up

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
WATCHED_SIGNALS = (*STOP_SIGNALS, signal.SIGCHLD)
LOADING_POLL_S = 0.2
IDLE_POLL_S = 60.0
LOADS_READ_S = 2.0
KILL_LIMIT_S = 10.0
MARKERS = ("warm", "draining", "killing", "liveness.json", "server.pid")
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

LIBC = ctypes.CDLL(None, use_errno=True)


class Launcher:
    """One server from start to end. Signals are blocked and read in one loop, so no handler ever runs."""

    def __init__(self, config: engine.Json, command: list[str]) -> None:
        self.config = config
        self.command = command
        self.server_pid = 0
        self.warm = False
        self.stopping_since: float | None = None
        self.drain_s = 0.0
        self.warm_up_result: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def run(self) -> int:
        """Start the server and stay until it has ended; returns the exit code of this process."""
        try:
            self.start()
            return self.supervise()
        finally:
            self.kill_all()

    def supervise(self) -> int:
        """Wait for signals, deadlines and the warm-up; returns the exit code when it is time to end."""
        threading.Thread(target=self.warm_up, daemon=True).start()
        while True:
            received = signal.sigtimedwait(WATCHED_SIGNALS, self.wait_s())
            server_code = self.reap()
            if server_code is not None:
                return self.server_ended(server_code)
            if received and received.si_signo in STOP_SIGNALS and self.stopping_since is None:
                if not self.warm:
                    return self.stop_loading(signal.Signals(received.si_signo))
                self.drain()
            if self.stopping_since is not None and self.wait_s() <= 0:
                return self.cut()
            if not self.warm and not self.warm_up_result.empty():
                failure = self.warm_up_result.get()
                if failure:
                    engine.log(failure)
                    engine.log("the server did not warm up: killing it.")
                    return 1
                self.warm = True
                engine.write_file(engine.marker(self.config, "warm"), f"{time.time():.0f}\n")
                engine.log("warm: this replica can take traffic.")

    def start(self) -> None:
        """Start the server with its own session, normal signals, and death with this process."""
        parent = os.getpid()

        def in_child() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

        # No thread runs yet, so preparing the child in Python is safe.
        process = subprocess.Popen(self.command, start_new_session=True, preexec_fn=in_child)  # noqa: PLW1509
        self.server_pid = process.pid
        # reap() collects every child, as PID 1 must; Popen shall not wait for this one too.
        process.returncode = 0
        engine.write_file(engine.marker(self.config, "server.pid"), f"{process.pid}\n")
        engine.log(f"started {self.command[0]} as process {process.pid}.")

    def warm_up(self) -> None:
        """In a thread: wait for the server, warm it, and report None or the sentence that says what failed."""
        try:
            warm_up.run(self.config)
            self.warm_up_result.put(None)
        except warm_up.WarmUpFailed as failure:
            self.warm_up_result.put(str(failure))
        except Exception as error:
            self.warm_up_result.put(f"the warm-up broke: {type(error).__name__}: {error}")

    def wait_s(self) -> float:
        """How long the loop may sleep before it must look at a deadline or at the warm-up."""
        if self.stopping_since is not None:
            return max(0.0, self.stopping_since + self.drain_s - time.monotonic())
        return IDLE_POLL_S if self.warm else LOADING_POLL_S

    def reap(self) -> int | None:
        """Collect every dead child; the server's exit code once it is among them."""
        server_code = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return server_code
            if pid == 0:
                return server_code
            if pid == self.server_pid:
                code = os.waitstatus_to_exitcode(status)
                server_code = code if code >= 0 else 128 - code

    def server_ended(self, code: int) -> int:
        """The server is gone: pass its exit code on."""
        if self.stopping_since is not None:
            when = f"{time.monotonic() - self.stopping_since:.0f} s after SIGTERM"
        else:
            when = "while serving" if self.warm else "before it was warm"
        engine.log(f"the server ended {when} with exit code {code}.")
        return code

    def stop_loading(self, received: signal.Signals) -> int:
        """Nothing is lost by a kill before the first request, and SGLang does not listen yet."""
        engine.log(f"{received.name} before the server was warm: killing it at once.")
        return 128 + received

    def drain(self) -> None:
        """Pass SIGTERM to the server process alone and start the clock."""
        hung = engine.marker(self.config, "killing").exists()
        self.drain_s = self.config["hung_drain_s" if hung else "drain_s"]
        self.stopping_since = time.monotonic()
        engine.log(f"SIGTERM: the server may finish its requests for {self.drain_s:g} s.")
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.server_pid, signal.SIGTERM)
        # For a stop without preStop; a full run folder must not cut the requests short.
        with contextlib.suppress(OSError):
            engine.write_file(engine.marker(self.config, "draining"), f"{time.time():.0f}\n")

    def cut(self) -> int:
        """The drain time is over: say what is lost, then kill."""
        engine.log(f"the server still runs {self.drain_s:g} s after SIGTERM: killing it. {self.lost()}")
        return 128 + signal.SIGKILL

    def lost(self) -> str:
        """What the kill cuts, in a sentence."""
        try:
            loads = engine.read_loads(self.config, timeout_s=LOADS_READ_S)
        except engine.NoAnswer as error:
            return f"Requests cut: unknown ({error})."
        running = engine.total(loads, "num_running_reqs")
        waiting = engine.total(loads, "num_waiting_reqs")
        sentence = f"Requests cut: {running + waiting:.0f} ({running:.0f} running, {waiting:.0f} waiting)."
        tokens = engine.total(loads, "num_used_tokens") + engine.total(loads, "num_waiting_uncached_tokens")
        if running + waiting == 0 and tokens > 0:
            sentence += " A long prompt was being read, which neither count shows."
        return sentence

    def kill_all(self) -> None:
        """SIGKILL every descendant until none is left; orphans come to this process, so none can hide."""
        until = time.monotonic() + KILL_LIMIT_S
        while pids := engine.living_descendants(os.getpid()):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > until:
                engine.log(f"{len(pids)} processes did not die within {KILL_LIMIT_S:g} s of SIGKILL.")
                break
            time.sleep(0.02)
            self.reap()
        self.reap()


def prepare(config: engine.Json) -> None:
    """Remove what an earlier container of this pod left, and make the compiled-kernel folders.

    Raises:
        OSError: when a folder cannot be made.
    """
    for name in MARKERS:
        engine.marker(config, name).unlink(missing_ok=True)
    for folder in config["cache_dirs"]:
        Path(folder).mkdir(parents=True, exist_ok=True)


def stopped_before_start(config: engine.Json) -> bool:
    """Whether the pod was asked to stop since this process began: its SIGTERM may have come too early to be kept.

    As PID 1 a process loses every signal until it has said what to do with it, and Python takes a while to start.
    """
    try:
        asked_at = engine.marker(config, "draining").stat().st_mtime
    except FileNotFoundError:
        return False
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    # The kernel counts in ticks: without one more, a marker that an earlier container left just now would count.
    return asked_at > time.time() - age_s + 1 / os.sysconf("SC_CLK_TCK")


def main(command: list[str]) -> int:
    """Run the command; returns the exit code."""
    # Blocked signals wait for the loop; PID 1 would lose unblocked ones.
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED_SIGNALS)
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    if not command:
        engine.log("launch.py needs the server's command line: launch.py sglang serve --model-path ...")
        return 2
    config = engine.load_config()
    try:
        if stopped_before_start(config):
            engine.log("the pod is being stopped already: not starting the server.")
            return 128 + signal.SIGTERM
        prepare(config)
        return Launcher(config, command).run()
    except OSError as error:
        engine.log(f"cannot start: {error.strerror} ({error.filename}).")
        return 1


if __name__ == "__main__":
    # os._exit: a warm-up thread that still waits for the server must not hold the process.
    exit_code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(exit_code)
