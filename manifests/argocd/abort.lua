-- Replicas return to the revision before, drained like any other.
obj.metadata.annotations = obj.metadata.annotations or {}
obj.metadata.annotations["sglpool.io/rollout"] = "abort"
return obj
