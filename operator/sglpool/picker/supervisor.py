"""PID 1 of the picker's container: it starts the picker, and starts it again when it has died or stands still.

The kubelet would do that too. But a container that starts again makes its pod unready for seconds, and for longer each
time, and in a pod that is going it is not started at all: then preStop waits for what nobody writes. Envoy serves on
without a picker, so the pod had better stay in its Service. What never came up is left to the kubelet, whose backoff
people can see. Not here: the picker, of which this process imports nothing, so that it stays small.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable

LOOK_S = 1.0
START_LOOKS = 60
"""Looks without any sign of life after which a picker that starts is given up."""
HANG_LOOKS = 15
"""The same of one that has run. Looks rather than seconds: when the whole container was frozen, both stood still."""
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0
STEADY_LOOKS = 60
"""A picker that ran for so long is started again at once, whatever happened before."""

_WATCHED = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
_LOG = logging.getLogger("sglpool.picker")

Beat = Callable[[], None]
Work = Callable[[Beat, int], int]


class Supervisor:
    """One picker after the other, each a child process."""

    def __init__(self, work: Work, *, look_s: float = LOOK_S) -> None:
        """Start nothing yet.

        Args:
            work: Runs in the child: it gets what it has to call as a sign of life, at least once in `HANG_LOOKS`, and
                how many pickers were there before; it returns the exit code.
            look_s: Time between two looks.
        """
        self._work = work
        self._look_s = look_s
        self._ending = False
        self._was_up = False
        self._looks = 0

    def run(self) -> int:
        """Keep a picker running until SIGTERM or SIGINT, which are passed on.

        Returns:
            The exit code of the last one.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        restarts, pause_s = 0, 0.0
        while True:
            code = self._live(restarts)
            if self._ending or not self._was_up:
                return code if code >= 0 else 128 - code
            restarts += 1
            pause_s = 0.0 if self._looks >= STEADY_LOOKS else min(max(pause_s * 2, FIRST_PAUSE_S), LONGEST_PAUSE_S)
            _LOG.error("the picker has ended (exit code %d); starting it again in %g s", code, pause_s)
            if self._told_within(pause_s):
                return 0

    def _live(self, restarts: int) -> int:
        """One picker, from its start to its exit code."""
        beats, beat = os.pipe()
        os.set_blocking(beats, False)
        os.set_blocking(beat, False)
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            os.close(beats)
            _end_with(self._work, beat, restarts)
        os.close(beat)
        try:
            return self._watch(child, beats)
        finally:
            os.close(beats)

    def _watch(self, child: int, beats: int) -> int:
        silent = self._looks = 0
        up = False
        while True:
            seen = signal.sigtimedwait(_WATCHED, self._look_s)
            if seen is None:
                self._looks += 1
                if _heard(beats):
                    up = self._was_up = True
                    silent = 0
                else:
                    silent += 1
                if silent >= (HANG_LOOKS if up else START_LOOKS):
                    _LOG.error("the picker has stood still for %g s", silent * self._look_s)
                    os.kill(child, signal.SIGKILL)
                    silent = 0
            elif seen.si_signo != signal.SIGCHLD:
                self._ending = True
                os.kill(child, signal.SIGTERM)
            code = _reap(child)
            if code is not None:
                self._was_up = self._was_up or _heard(beats)
                return code

    def _told_within(self, pause_s: float) -> bool:
        """Wait; return whether it was told to end meanwhile."""
        return pause_s > 0 and signal.sigtimedwait((signal.SIGTERM, signal.SIGINT), pause_s) is not None


def _heard(beats: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        return bool(os.read(beats, 4096))
    return False


def _reap(child: int) -> int | None:
    """Take in every process that has ended, also those whose parents left them to PID 1.

    Returns:
        The child's exit code, if it was among them.
    """
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == child:
            code = os.waitstatus_to_exitcode(status)


def _end_with(work: Work, beat: int, restarts: int) -> None:
    """The child's whole life; it never returns."""
    code = 1
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        code = work(lambda: _beat(beat), restarts)
    except BaseException:
        _LOG.exception("the picker failed")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _beat(beat: int) -> None:
    """Give a sign of life. Without anybody to hear it a picker ends, lest it goes on beside the next one."""
    try:
        os.write(beat, b".")
    except BlockingIOError:
        return
    except BrokenPipeError:
        _LOG.error("the picker's supervisor is gone")
        raise
