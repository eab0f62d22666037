"""The errors of the sandbox: every one is a sentence for the person at the terminal."""

from __future__ import annotations


class SandboxError(Exception):
    """Something that the user can act on; printed without a traceback."""


class SourceUnavailable(SandboxError):
    """A source of binaries cannot be used here; the next one is tried, and the reason kept for the report."""
