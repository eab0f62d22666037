-- The conversation's key, as two headers for the picker and for the ring hash, and where it went the last time.
-- Names of headers, KEY_HEADERS, BUFFER_BYTES and `remember.lua` stand in front of this text, and nobody outside can
-- have set what is set here. No byte of a body leaves Envoy: a request without any of
-- the headers gets a hash of its first user message, which stays the same as the conversation grows.

local LONGEST_KEY = 128
-- How far into a body the first user message is looked for (tools and system may stand before it), a piece at a time.
local SCAN_BYTES, PIECE_BYTES = 2097152, 65536
-- Most bytes of a message that are read, and how many of its beginning and of its end are hashed.
local MESSAGE_BYTES, HASHED_BYTES = 4096, 512

local byte, find, gsub, match, sub = string.byte, string.find, string.gsub, string.match, string.sub
local tobit, tohex = bit.tobit, bit.tohex

-- 64 bits: two polynomial hashes, four bytes at a time. Every product stays below 2^53, where Lua's numbers are exact.
local function digest(text)
  local one, two = #text, 5381
  text = text .. "\0\0\0"
  for i = 1, #text - 3, 4 do
    local a, b, c, d = byte(text, i, i + 3)
    local word = a + b * 256 + c * 65536 + d * 16777216
    one = tobit(one * 69069 + word)
    two = tobit(two * 1000003 + word)
  end
  return tohex(one) .. tohex(two)
end
jit.on(digest)

local function short(text)
  if #text > LONGEST_KEY then
    return digest(text)
  end
  return text
end

-- Where the JSON object that `text` lies in ends, seen from `from`, or nil: strings are stepped over.
local function object_end(text, from)
  local depth, at = 0, from
  while true do
    at = find(text, '["{}]', at)
    if not at then
      return nil
    end
    local c = byte(text, at)
    if c == 34 then
      repeat
        at = find(text, '["\\]', at + 1)
        if at and byte(text, at) == 92 then
          at = at + 1
        elseif at then
          break
        end
      until not at
      if not at then
        return nil
      end
    elseif c == 123 then
      depth = depth + 1
    elseif depth == 0 then
      return at
    else
      depth = depth - 1
    end
    at = at + 1
  end
end

-- Cache marks wander through a conversation; they are no part of the message.
local function message_digest(text)
  text = gsub(text, ',?%s*"cache_control"%s*:%s*%b{}', "")
  if #text > 2 * HASHED_BYTES then
    text = sub(text, 1, HASHED_BYTES) .. sub(text, -HASHED_BYTES)
  end
  return digest(text)
end

-- The message behind the role at offset `at` of the body, or before it where the role stands last in its object.
local function first_message(body, length, at)
  local text = body:getBytes(at, math.min(MESSAGE_BYTES, length - at))
  local stop = object_end(text, 1)
  if stop and match(text, '^"role"%s*:%s*"user"%s*}') then
    local from = math.max(0, at - 2 * HASHED_BYTES)
    return body:getBytes(from, at - from)
  end
  return stop and sub(text, 1, stop) or text
end

-- Offset of the first `name : value` in the body's first bytes, or nil.
local function locate(body, length, name, value)
  local limit, from = math.min(length, SCAN_BYTES), 0
  while from < limit do
    local piece = body:getBytes(from, math.min(PIECE_BYTES, length - from))
    local at = find(piece, name, 1, true)
    while at do
      if match(piece, value, at + #name) then
        return from + at - 1
      end
      at = find(piece, name, at + 1, true)
    end
    -- The pieces overlap, so that nothing is missed where they meet.
    from = from + PIECE_BYTES - 64
  end
  return nil
end

local function fingerprint(body)
  local length = body:length()
  local at = locate(body, length, '"role"', '^%s*:%s*"user"')
  if at then
    return message_digest(first_message(body, length, at))
  end
  -- One text instead of messages: its beginning.
  at = locate(body, length, '"input"', '^%s*:%s*"') or locate(body, length, '"prompt"', '^%s*:%s*["%[]')
  if at then
    return message_digest(body:getBytes(at, math.min(HASHED_BYTES, length - at)))
  end
  return nil
end

-- Session and conversation (nil where the session is one) as the client's harness names them, or nil.
local function from_headers(headers)
  for i = 1, #KEY_HEADERS do
    local session = headers:get(KEY_HEADERS[i][1])
    if session and session ~= "" then
      local name = KEY_HEADERS[i][2]
      local conversation = name and headers:get(name)
      return short(session), conversation and conversation ~= "" and short(conversation) or nil
    end
  end
  return nil
end

-- A destination that is remembered is only what is left when the picker says nothing: its answer replaces it.
local function note(headers, session, conversation)
  headers:add(SESSION, session)
  if conversation then
    headers:add(CONVERSATION, conversation)
  end
  local destination = recall(memo_key(session, conversation))
  if destination then
    headers:add(DESTINATION, destination)
  end
end

function envoy_on_request(handle)
  local headers = handle:headers()
  local session, conversation = from_headers(headers)
  if session then
    note(headers, session, conversation)
    return
  end
  -- What does not fit the buffer goes without a key rather than not at all.
  local length = tonumber(headers:get("content-length") or "")
  if length and length > BUFFER_BYTES then
    return
  end
  local body = handle:body()
  if not body then
    return
  end
  local key = fingerprint(body)
  if key then
    -- Asked for again: waiting for the body has made the first one invalid.
    note(handle:headers(), key, key)
  end
end
