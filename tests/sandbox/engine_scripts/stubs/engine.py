"""A stand-in for `sglang serve`: engine.py FOLDER PORT. It does what FOLDER/control.json says, read anew each time.

Keys: ready (bool), chat ([[status, delay_s], ...], the last one repeats), loads (object or null: never answers),
metrics (text), on_term ("exit" or "ignore"), rank (bool: a child process, as SGLang has per GPU), orphan (bool:
a grandchild that loses its parent and exits), exit_code (int: leave at once).
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FOLDER = Path(sys.argv[1])
LOCK = threading.Lock()
CHATS = [0]

RANK = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: pathlib.Path(sys.argv[1], "rank-got-sigterm").touch())
pathlib.Path(sys.argv[1], "rank-up").touch()
while True:
    time.sleep(60)
"""


def control():
    return json.loads((FOLDER / "control.json").read_text())


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, status, body):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        settings = control()
        if self.path == "/ready":
            ready = settings.get("ready", True)
            if not ready:
                once = FOLDER / "not-ready-once"
                (FOLDER / "not-ready-twice" if once.exists() else once).touch()
            self.answer(200 if ready else 503, {})
        elif self.path.startswith("/v1/loads"):
            if settings.get("loads") is None:
                time.sleep(60)
            self.answer(200, {"loads": [settings["loads"]]})
        elif self.path == "/metrics":
            self.answer(200, settings.get("metrics", "").encode())
        elif self.path == "/finish":  # the last request is done: a drain ends
            os._exit(0)
        else:
            self.answer(404, {})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        plan = control().get("chat", [[200, 0]])
        with LOCK:
            status, delay_s = plan[min(CHATS[0], len(plan) - 1)]
            CHATS[0] += 1
            warm = Path(FOLDER, "run", "warm").exists()
            with open(FOLDER / "requests.jsonl", "a") as log:
                log.write(json.dumps({"path": self.path, "body": body, "warm": warm}) + "\n")
        time.sleep(delay_s)
        usage = {"prompt_tokens": len(str(body["messages"][0]["content"]).split())}
        good = {"choices": [{"finish_reason": "length"}], "usage": usage}
        self.answer(status, good if status == 200 else {"message": f"made to answer {status}"})


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # clients that hang up are part of the tests


def on_term(*_):
    (FOLDER / "server-got-sigterm").touch()
    if control().get("on_term", "exit") == "exit":
        os._exit(0)


def main():
    settings = control()
    if "exit_code" in settings:
        sys.exit(settings["exit_code"])
    # As SGLang: no handler while it loads.
    if settings.get("ready", True):
        signal.signal(signal.SIGTERM, on_term)
    if settings.get("rank"):
        subprocess.Popen([sys.executable, "-c", RANK, str(FOLDER)])
    if settings.get("orphan"):
        orphan = f"{sys.executable} -c 'import time; time.sleep(0.2)' & echo $! > {FOLDER}/orphan.pid"
        subprocess.run(["sh", "-c", orphan], check=True)
    (FOLDER / "server.pid").write_text(str(os.getpid()))
    Server(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()


main()
