-- inflow: requests that a claim brings back to their lanes, delayed ones that are due, and elements of the inbox. Part
-- of claim.

local MAX_PROMOTED, MAX_INBOX = 200, 16 -- ids and elements that one claim takes
local MAX_INBOX_BYTES = 32 * 2 ^ 20 -- after so many bytes a claim takes no further element

-- Put an id that waited elsewhere into its lane; one without a request is dropped.
local function return_to_lane(id, is_at_front)
  local header = stored_header(id)
  if header then
    local _, _, crashes = attempts_of(id)
    enqueue(id, header, crashes, is_at_front)
  end
end

-- Return due retries and start times to their lanes.
local function promote_delayed(claim)
  local due = call("ZRANGE", prefix .. "delayed", 0, claim.time_ms, "BYSCORE", "LIMIT", 0, MAX_PROMOTED)
  for _, id in ipairs(due) do
    call("ZREM", prefix .. "delayed", id)
    return_to_lane(id, false)
  end
end

-- Hand an element to the worker; returns its token, a number that no element had before.
local function hand_out(claim, element)
  local token = integer(call("HINCRBY", prefix .. "stats", "inbox_taken", 1))
  call("HSET", prefix .. "admitting:" .. claim.worker, token, element)
  claim.admitting[#claim.admitting + 1], claim.admitting[#claim.admitting + 2] = token, element
  return token
end

-- Take an element that was with a worker when it died. It comes alone: the next death proves that it is the cause.
local function take_suspect_element(claim)
  local element = not claim.has_suspects and call("LPOP", prefix .. "inbox_suspects")
  if not element then
    return false
  end
  call("HSET", key_of("worker:" .. claim.worker, "HLEN"), "suspect_element", hand_out(claim, element))
  claim.max_suspects = 0
  return true
end

-- Take elements up to the bounds; returns whether it took any. One over the limit becomes a dead letter here, so that no
-- worker must hold it.
local function take_elements(claim)
  local num_taken, num_bytes = 0, 0
  while num_taken < MAX_INBOX and num_bytes < MAX_INBOX_BYTES do
    local element = call("LPOP", prefix .. "inbox")
    if not element then
      break
    end
    num_taken, num_bytes = num_taken + 1, num_bytes + #element
    if #element > claim.max_element_bytes then
      local id = "inbox-" .. integer(call("HINCRBY", prefix .. "stats", "inbox_taken", 1))
      dead_letter_element(id, "too_large", '{"max_bytes":' .. integer(claim.max_element_bytes) .. "}", 0, element, claim.time_ms)
    else
      hand_out(claim, element)
    end
  end
  return num_taken > 0
end

-- Take elements of the inbox, unless the queue is at its caps or the worker has some to admit; returns whether it took
-- any.
local function take_inbox(claim)
  if #claim.admitting > 0 then
    claim.max_suspects = 0 -- an element may be a suspect, and two suspects prove nothing
    return false
  elseif call("EXISTS", prefix .. "inbox", prefix .. "inbox_suspects") == 0 then
    return false
  end
  local depth, bytes = depth_and_bytes()
  if depth >= claim.max_depth or bytes >= claim.max_bytes then
    return false
  end
  return take_suspect_element(claim) or take_elements(claim)
end
