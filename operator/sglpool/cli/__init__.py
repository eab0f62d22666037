"""The command line: parses words, calls the packages below, prints.

Commands import what they need when they run: `sglpool plan` starts without a Kubernetes client, and the operator
never loads the sandbox. Not here: anything that the words mean.
"""

from sglpool.cli.app import main

__all__ = ["main"]
