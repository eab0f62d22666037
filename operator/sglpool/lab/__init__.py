"""A laboratory: many replicas, routers and coding agents in simulated time, to judge a routing policy by numbers.

Replicas are the engine model, routers are the routing policy with the estimates that a real router has, and clients
are sessions with the statistics of real ones. Seeds go in, figures come out: no clock, no network, and the same
figures for the same seed. It is a model: rankings and variances carry over to real pools, absolute latencies do not.
"""
