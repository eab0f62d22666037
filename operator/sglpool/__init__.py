"""sglpool: pools of SGLang replicas for coding agents on Kubernetes."""

__version__ = "0.1.0"
