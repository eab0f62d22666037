-- Which actions Argo CD offers for an InferencePool, and which of them would do something now.
local word = nil
if obj.metadata.annotations ~= nil then
  word = obj.metadata.annotations["sglpool.io/rollout"]
end
local failed = false
if obj.status ~= nil and obj.status.conditions ~= nil then
  for _, condition in ipairs(obj.status.conditions) do
    if condition.type == "Ready" and condition.reason == "GateFailed" then
      failed = true
    end
  end
end
return {
  ["pause"] = {disabled = word == "pause"},
  ["resume"] = {disabled = word ~= "pause" and word ~= "abort"},
  ["abort"] = {disabled = word == "abort"},
  ["retry-gate"] = {disabled = not failed},
}
