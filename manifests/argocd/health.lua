-- Health of an InferencePool for Argo CD. Ready sums up; Stalled means that nothing changes without a change of the spec.
local broken = {
  CrashLoop = true,
  ContainerConfigError = true,
  ImagePullFailed = true,
  ProgressDeadlineExceeded = true,
  RolloutAborted = true,
  RouterStuck = true,
}

if obj.status == nil or obj.status.conditions == nil then
  return {status = "Progressing", message = "sglpool has not looked at this pool yet"}
end
if obj.metadata.generation ~= nil and obj.status.observedGeneration ~= nil
    and obj.metadata.generation ~= obj.status.observedGeneration then
  return {status = "Progressing", message = "sglpool has not looked at the last change yet"}
end

local found = {}
for _, condition in ipairs(obj.status.conditions) do
  found[condition.type] = condition
end
local ready, stalled = found.Ready, found.Stalled

if stalled ~= nil and stalled.status == "True" then
  return {status = "Degraded", message = stalled.message}
end
if ready == nil then
  return {status = "Progressing", message = "sglpool has not looked at this pool yet"}
end
if ready.status == "True" then
  return {status = "Healthy", message = ready.message}
end
if ready.reason == "RolloutPaused" then
  return {status = "Suspended", message = ready.message}
end
if broken[ready.reason] then
  return {status = "Degraded", message = ready.message}
end
return {status = "Progressing", message = ready.message}
