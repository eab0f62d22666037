"""The API of sglpool: what a user writes and what the operator answers.

The pydantic models here are the single source: the CRD, its defaults and the checks of `sglpool plan` all
come from them. Nothing in this package talks to a cluster.
"""
