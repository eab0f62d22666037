-- No further replica is replaced.
obj.metadata.annotations = obj.metadata.annotations or {}
obj.metadata.annotations["sglpool.io/rollout"] = "pause"
return obj
