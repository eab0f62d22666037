"""Envoy's configuration: the bootstrap, the listener and the Lua filter. Not here: the pod around it."""
