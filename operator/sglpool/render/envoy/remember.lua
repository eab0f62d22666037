-- Where the picker last sent each conversation, so that it goes there too while the picker is away.
-- MOST stands in front of this text. A ring hash alone would send nearly everybody to a replica that has to compute the
-- whole context anew, all at once. What is remembered is a worker's own: a client that keeps its connection meets the
-- same worker again. `key.lua` recalls, `scan.lua` remembers: a filter of its own behind the picker would cost more
-- than all that either does.

-- Two generations: when the younger is full the older is forgotten.
local young, old, count = {}, {}, 0

local function memo_key(session, conversation)
  return conversation and session .. "\t" .. conversation or session
end

local function recall(key)
  return young[key] or old[key]
end

-- `memo` is the picker's own echo: the destination, a blank, and the conversation as `memo_key` names it.
local function remember(memo)
  local blank = string.find(memo, " ", 1, true)
  if not blank then
    return
  end
  local key = string.sub(memo, blank + 1)
  if not young[key] then
    if count >= MOST then
      young, old, count = {}, young, 0
    end
    count = count + 1
  end
  young[key] = string.sub(memo, 1, blank - 1)
end
