-- inflow: requests that a claim brings back to their lanes, delayed ones that are due, and elements of the inbox. Part
-- of claim.

local MAX_PROMOTED, MAX_INBOX = 200, 16 -- ids and elements that one claim takes

-- Put an id that waited elsewhere into its lane; one without a request is dropped.
local function return_to_lane(id, is_at_front)
  local record = stored_record(id)
  if record then
    local _, _, crashes = attempts_of(id)
    enqueue(id, header_of(record), crashes, is_at_front)
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

-- Take elements of the inbox, unless the queue is at its caps; returns whether it took any.
local function take_inbox(claim)
  if call("LLEN", prefix .. "inbox") == 0 then
    return false
  end
  local depth, bytes = depth_and_bytes()
  if depth >= claim.max_depth or bytes >= claim.max_bytes then
    return false
  end
  for _, element in ipairs(call("LPOP", prefix .. "inbox", MAX_INBOX) or {}) do
    local token = call("HINCRBY", prefix .. "stats", "inbox_taken", 1)
    call("HSET", prefix .. "admitting:" .. claim.worker, token, element)
  end
  return true
end
