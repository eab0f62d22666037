"""A real control plane on one machine: plain processes, fake GPU nodes, no container engine.

For tests, demos and trying things out. The product never imports it.
"""
