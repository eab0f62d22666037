"""Ports of a router pod as manifests name them. The numbers are shared with Envoy's settings and the picker."""

from __future__ import annotations

from sglpool.routing.pickerconfig import HEALTH_PORT, HTTP_PORT, STATE_PORT

__all__ = ["HEALTH_PORT", "HEALTH_PORT_NAME", "HTTP_PORT", "HTTP_PORT_NAME", "STATE_PORT", "STATE_PORT_NAME"]

HTTP_PORT_NAME = "http"
HEALTH_PORT_NAME = "health"
STATE_PORT_NAME = "state"
