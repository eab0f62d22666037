"""An Envoy of which a thread hangs ends by itself, so that the kubelet starts it again; a busy one does not."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal

from sglpool.render.envoy.bootstrap import BOOTSTRAP_FILE, HANG_LIMIT_S
from sglpool.routing.pickerconfig import LDS_FILE
from support.envoy_process import EnvoyProcess
from support.waiting import wait_until

LOOPS = "function envoy_on_request(handle) while handle:headers():get('x-hang') do end end"


def hanging_envoy() -> EnvoyProcess:
    """An Envoy that hangs on demand, and that waits less long for a thread that does."""
    envoy = EnvoyProcess()
    bootstrap = envoy.folder / BOOTSTRAP_FILE
    text = bootstrap.read_text()
    assert text.count(f"kill_timeout: {HANG_LIMIT_S}s") == 2, "one for the main thread, one for the workers"
    bootstrap.write_text(text.replace(f"kill_timeout: {HANG_LIMIT_S}s", "kill_timeout: 1s"))
    listener = envoy.folder / LDS_FILE
    resources = json.loads(listener.read_text())
    (chain,) = resources["resources"][0]["filter_chains"]
    filters = chain["filters"][0]["typed_config"]["http_filters"]
    (script,) = [each for each in filters if each["name"] == "envoy.filters.http.lua"]
    script["typed_config"]["default_source_code"] = {"inline_string": LOOPS}
    listener.write_text(json.dumps(resources))
    return envoy


def test_a_worker_that_hangs_ends_envoy() -> None:
    with hanging_envoy() as envoy:
        assert envoy.request("POST", "/v1/chat/completions", {}).status == 503, (
            "nobody is there to serve, but it answers"
        )
        with contextlib.suppress(OSError, http.client.HTTPException):
            envoy.request("POST", "/v1/chat/completions", {}, headers={"x-hang": "yes"}, timeout_s=20)
        assert envoy.process is not None
        process = envoy.process
        wait_until(lambda: process.poll() is not None, timeout_s=20, describe="Envoy ends")
        assert process.returncode == -signal.SIGABRT
        assert "Watchdog" in envoy.log(), "and says why"
