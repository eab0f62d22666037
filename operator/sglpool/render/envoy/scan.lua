-- What a response says about itself, left for the access log: why it ended, what it cost, whether it was a refusal.
-- Chunks are looked at as they pass and never held back. In JSON a quote inside a text is escaped, so what a model
-- writes can never look like a field.
-- Names of fields and headers, and `remember.lua`, stand in front of this text.

-- Carried over from a chunk that ends inside an event, so that a field cut in two is still seen.
local TAIL_BYTES = 512
local ERROR_BYTES = 400
-- Of a stream's beginning and of its end at least so much is read: several times what the last events take.
local KEPT_BYTES = 4096
local STREAM = "text/event-stream"

local FINISH = {
  tool_calls = "tool_calls", function_call = "tool_calls", tool_use = "tool_calls",
  stop = "stop", end_turn = "stop", stop_sequence = "stop",
  length = "length", max_tokens = "length", model_context_window_exceeded = "length",
  abort = "abort",
}
-- By the six characters before `_tokens"`: what the whole name begins with, and the field that its count is.
local TOKENS = {
  prompt = { '"prompt', "prompt_tokens" }, ['"input'] = { '"input', "prompt_tokens" },
  letion = { '"completion', "completion_tokens" }, output = { '"output', "completion_tokens" },
  cached = { '"cached', "cached_tokens" }, _input = { '"cache_read_input', "cached_tokens" },
}

local byte, find, match, sub, concat = string.byte, string.find, string.match, string.sub, table.concat

local function look_at_reasons(text, found, at)
  repeat
    local reason = match(text, '^%s*:%s*"([%a_]+)"', at + 8)
    if reason then
      found.finish = FINISH[reason] or "unknown"
    end
    at = find(text, '_reason"', at + 8, true)
  until not at
end

local function ends_with(text, at, words)
  return sub(text, at - #words, at - 1) == words
end

local function look_at_tokens(text, found, at)
  repeat
    local known = TOKENS[sub(text, at - 6, at - 1)]
    if known then
      local count = match(text, "^%s*:%s*(%d+)", at + 8)
      if count and ends_with(text, at, known[1]) then
        found[known[2]] = count
      elseif not count and ends_with(text, at, '"max_output') then
        found.cut = true
      end
    end
    at = find(text, '_tokens"', at + 8, true)
  until not at
end

local function look_at_errors(text, found)
  local at = find(text, '"error"', 1, true)
  while at do
    if match(text, "^%s*:%s*{", at + 7) then
      local error = sub(text, at, at + ERROR_BYTES)
      if find(error, '"code"%s*:%s*503') or find(error, '"overloaded_error"', 1, true) then
        found.refused = "true"
      end
    end
    at = find(text, '"error"', at + 7, true)
  end
end

local function look_at_calls(text, found, at)
  repeat
    if match(sub(text, math.max(1, at - 13), at - 1), '"type"%s*:%s*"$') then
      found.call = true
    end
    at = find(text, 'function_call"', at + 14, true)
  until not at
end

-- Plain searches that begin with a rare character, since that is what their time goes by; what they find is rare, but
-- for the finish_reason of a chat, which is null in every chunk but one.
local function look(text, found)
  local at = find(text, '_reason"', 1, true)
  if at and (byte(text, at + 9) ~= 110 or find(text, '_reason"', at + 9, true)) then
    look_at_reasons(text, found, at)
  end
  at = find(text, '_tokens"', 1, true)
  if at then
    look_at_tokens(text, found, at)
  end
  at = find(text, 'function_call"', 1, true)
  if at then
    look_at_calls(text, found, at)
  end
  if find(text, "_error", 1, true) or find(text, "503", 1, true) then
    look_at_errors(text, found)
  end
end

-- One text for all of it: each value that is set costs Envoy as much as reading a whole chunk.
local function keep(handle, found)
  local finish = found.finish
  -- The responses API has no reason: its items and its details say it.
  if not finish and found.completion_tokens then
    finish = found.call and "tool_calls" or found.cut and "length" or "stop"
  end
  local values, any = {}, false
  found.finish = finish
  for i = 1, #ANSWER_FIELDS do
    local value = found[ANSWER_FIELDS[i]]
    any = any or value
    values[i] = value or "-"
  end
  if any then
    handle:streamInfo():dynamicMetadata():set(NAMESPACE, ANSWER, concat(values, ","))
  end
end

-- Everything is read: an answer in one piece, or what may hold a call of a tool anywhere.
local function read_all(chunks, found, tail)
  for chunk in chunks do
    local length = chunk:length()
    -- The last one is empty: what came before has been seen.
    if length > 0 then
      local text = chunk:getBytes(0, length)
      if tail then
        text = tail .. text
      end
      look(text, found)
      -- No field goes beyond its line.
      tail = byte(text, -1) ~= 10 and sub(text, -TAIL_BYTES) or nil
    end
  end
end

-- The bytes of a chunk, of a very large one only where it begins and ends.
local function some_of(chunk, length)
  if length <= 2 * KEPT_BYTES then
    return chunk:getBytes(0, length)
  end
  return chunk:getBytes(0, KEPT_BYTES) .. "\n" .. chunk:getBytes(length - KEPT_BYTES, KEPT_BYTES)
end

-- Of a stream its beginning and its end are read, which say it all: reading what lies between would double what a chunk
-- costs. Chunks are put by until there are enough bytes of them, and those before them are forgotten then.
local function read_ends(chunks, found)
  local first, old, young, count, bytes = nil, {}, {}, 0, 0
  for chunk in chunks do
    local length = chunk:length()
    if length > 0 then
      count, bytes = count + 1, bytes + length
      young[count] = first and some_of(chunk, length) or chunk:getBytes(0, length)
      if bytes >= KEPT_BYTES then
        if not first then
          first = concat(young)
          -- Of this API, calls of tools are events of their own.
          if find(first, '"response.', 1, true) then
            look(first, found)
            return read_all(chunks, found, sub(first, -TAIL_BYTES))
          end
          young, first = { sub(first, -KEPT_BYTES) }, sub(first, 1, KEPT_BYTES)
        end
        old, young, count, bytes = young, {}, 0, 0
      end
    end
  end
  look((first or "") .. "\n" .. concat(old) .. concat(young), found)
end

function envoy_on_response(handle)
  local headers = handle:headers()
  local memo = headers:get(MEMO)
  if memo then
    -- No client needs to know.
    headers:remove(MEMO)
    remember(memo)
  end
  if headers:get(":status") ~= "200" then
    return
  end
  local found, kind = {}, headers:get("content-type")
  local read = kind and sub(kind, 1, #STREAM) == STREAM and read_ends or read_all
  read(handle:bodyChunks(), found)
  keep(handle, found)
end
