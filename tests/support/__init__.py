"""Helpers that tests of every ring share."""
