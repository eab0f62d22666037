"""`python -m sglpool` is the `sglpool` command."""

from sglpool.cli import main

main()
