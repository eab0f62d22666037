"""The command line: parses words, calls the packages below, prints."""

def main() -> None:
    """Run the command line."""
