"""A stand-in for the hub's client. The folder in FAKE_HUB holds the repository; its hub.json says what goes wrong.

Keys: sizes_known (bool), fail (list of reasons, one per call: a status code, "network", "full", "truncate"),
hold (bool: a download waits until the file `go` appears).
"""

import errno
import json
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

HUB = Path(os.environ["FAKE_HUB"])


def _settings():
    return json.loads((HUB / "hub.json").read_text())


class HubError(Exception):
    def __init__(self, status):
        super().__init__(f"status {status}")
        self.response = SimpleNamespace(status_code=status)


class HfApi:
    def model_info(self, repo, *, revision, files_metadata):
        assert files_metadata
        files = [path for path in (HUB / "repo").rglob("*") if path.is_file()]
        known = _settings().get("sizes_known", True)
        siblings = [
            SimpleNamespace(rfilename=str(path.relative_to(HUB / "repo")), size=path.stat().st_size if known else None)
            for path in files
        ]
        return SimpleNamespace(siblings=siblings)


def snapshot_download(*, repo_id, revision, local_dir, ignore_patterns):
    with open(HUB / "calls", "a+") as calls:
        calls.seek(0)
        number = len(calls.readlines())
        calls.write(f"{repo_id} {revision} {os.environ.get('HF_TOKEN')}\n")
    settings = _settings()
    fail = settings.get("fail", [])[number : number + 1]
    if fail and isinstance(fail[0], int):
        raise HubError(fail[0])
    if fail == ["network"]:
        raise ConnectionError("connection reset by peer")
    if fail == ["full"]:
        raise OSError(errno.ENOSPC, "No space left on device", local_dir)
    until = time.monotonic() + 30
    while settings.get("hold") and not (HUB / "go").exists():
        if time.monotonic() > until:
            raise TimeoutError("the test never said go")
        time.sleep(0.02)
    for source in (HUB / "repo").iterdir():
        target = Path(local_dir, source.name)
        # As the real client: a file that is there is not fetched again.
        if source.is_file() and not target.exists():
            shutil.copy(source, target)
    if fail == ["truncate"]:
        victim = sorted(Path(local_dir).glob("*.safetensors"))[0]
        victim.write_bytes(victim.read_bytes()[:-10])
    return local_dir
