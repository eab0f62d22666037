-- Where the picker last sent each conversation, so that it goes there too while the picker is away.
-- The header names and MOST stand in front of this text. A ring hash alone would send nearly everybody to a replica
-- that has to compute the whole context anew, all at once. What is remembered is a worker's own: a client that keeps its
-- connection meets the same worker again.

-- Two generations: when the younger is full the older is forgotten.
local young, old, count = {}, {}, 0

function envoy_on_request(handle)
  local headers = handle:headers()
  local session = headers:get(SESSION)
  if not session then
    return
  end
  local key = session .. "\t" .. (headers:get(CONVERSATION) or "")
  local destination = headers:get(DESTINATION)
  if not destination then
    local known = young[key] or old[key]
    if known then
      headers:add(DESTINATION, known)
    end
    return
  end
  if not young[key] then
    if count >= MOST then
      young, old, count = {}, young, 0
    end
    count = count + 1
  end
  young[key] = destination
end
