"""The process beside Envoy: it answers where a request goes, and keeps what that answer needs up to date.

Envoy asks over a unix socket (`authz`), the policy decides (`routing`), the ledger counts; pods, polls, the access log
and the shared store keep the ledger true. When the picker is away Envoy serves on without it. Small on purpose: one
event loop, one process, no client of the operator's. Not here: any byte of a request's or a response's body.
"""
