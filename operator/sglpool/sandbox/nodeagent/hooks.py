"""The postStart and preStop hooks of a container: what each does, and when it has failed.

Not here: when they run and what their failure leads to (`containers`, `stopping`).
"""

from __future__ import annotations

import asyncio

from sglpool.sandbox.apiserver import Manifest
from sglpool.sandbox.errors import SandboxError
from sglpool.sandbox.nodeagent.checks import Target, Unsupported, check


async def run_hook(hook: Manifest, target: Target, *, limit_s: float) -> str:
    """Run a hook to its end.

    Args:
        hook: Its part of the manifest.
        target: The container.
        limit_s: How long it may take.

    Returns:
        Why it failed, empty if it did not.
    """
    if sleep := hook.get("sleep"):
        await asyncio.sleep(min(sleep.get("seconds", 0), limit_s))
        return ""
    if "tcpSocket" in hook:
        # Kept in the API for old manifests only; a kubelet never runs it.
        return "tcpSocket hooks are not supported"
    try:
        outcome = await check(hook, target, timeout_s=limit_s)
    except (Unsupported, OSError, SandboxError) as error:
        return str(error)
    return "" if outcome.ok else outcome.output or "it did not succeed"
