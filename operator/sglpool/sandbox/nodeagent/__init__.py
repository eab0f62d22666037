"""The node agent: a small kubelet that runs the pods of the sandbox's nodes as local processes.

`worker` lives a pod's life, `runtime` starts its containers. Not here: an image store, cgroups, a network.
"""
