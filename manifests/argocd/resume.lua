-- The roll-out goes on, as if nothing had been said.
if obj.metadata.annotations ~= nil then
  obj.metadata.annotations["sglpool.io/rollout"] = nil
end
return obj
