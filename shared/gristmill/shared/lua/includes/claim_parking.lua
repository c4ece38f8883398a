-- claim_parking: park what this worker may not have, and return what it may. Part of claim.

local MAX_UNPARKED, MAX_REASONS = 200, 64 -- ids that one claim returns; claimable reasons that it looks at
local MAX_OTHER_REASONS = 8 -- reasons that it looks at beside these: scripts of protocol 1.0 do not tell claimable ones

-- Read which facts the worker understands, which tenants come last, and whether anything is paused.
local function read_permits(claim)
  for name in string.gmatch(ARGV[11] or "", "[^,]+") do
    claim.understands[name] = true
  end
  for tenant in string.gmatch(ARGV[17] or "", "[^,]+") do
    claim.avoided[tenant], claim.num_avoided = true, claim.num_avoided + 1
  end
  claim.has_pauses = call("EXISTS", prefix .. "pauses") == 1
end

local function is_paused(claim, scope)
  if claim.has_pauses and claim.pauses[scope] == nil then
    claim.pauses[scope] = call("HEXISTS", prefix .. "pauses", scope) == 1
  end
  return claim.pauses[scope]
end

-- Return whether a worker understands all of some facts.
local function understands(claim, names)
  for name in string.gmatch(names, "[^,]+") do
    if not claim.understands[name] then
      return false
    end
  end
  return true
end

-- Return why a request may not be claimed now, or nil.
local function why_parked(claim, header)
  if header.batch ~= "" and is_paused(claim, "batch:" .. header.batch) then
    return "batch:" .. header.batch
  end
  local names = header.facts ~= "" and required_facts(header) or ""
  return not understands(claim, names) and "facts:" .. names or nil
end

-- Return the score of an id among the parked ones of its reason: its age, and the order in which those of one ms came.
local function parked_position(header, reason)
  local next_ms = "(" .. integer(header.enqueued_ms + 1)
  local last = call("ZRANGE", parked_key(reason), next_ms, header.enqueued_ms, "BYSCORE", "REV", "LIMIT", 0, 1, "WITHSCORES")
  return last[2] and math.min(last[2] + 1 / 4096, header.enqueued_ms + 4095 / 4096) or tonumber(header.enqueued_ms)
end

local function park(id, header, reason)
  call("ZADD", parked_key(reason), parked_position(header, reason), id)
  call("SADD", prefix .. "parked", reason)
  if string.sub(reason, 1, 6) == "facts:" then
    call("SADD", prefix .. "parked_claimable", reason)
  end
end

-- Return whether the first id of a lane must stay before a parked one: it is older, or of the same reason and ms.
local function stays_first(key, header, reason, fronts)
  if fronts[key] == nil then
    local id = call("LINDEX", key, 0)
    fronts[key] = id and stored_header(id) or false -- false too for a tombstone
  end
  local front = fronts[key]
  if not front or front.enqueued_ms ~= header.enqueued_ms then
    return front and tonumber(front.enqueued_ms) < tonumber(header.enqueued_ms)
  end
  return reason == "batch:" .. front.batch or reason == "facts:" .. required_facts(front)
end

-- Return whether a parked id may go back to the front of its lane: the claim may take from there, and nothing older
-- stands there. Otherwise newer ids would come first if a claim takes fewer than it puts back. `fronts` is key -> header.
local function may_return(claim, header, crashes, reason, fronts)
  local lane, flow, kind = place_of(header, crashes)
  if lane == "suspect" and (claim.max_suspects < 1 or crashes > 1 and claim.has_suspects) then
    return false
  elseif claim.max_of_lane[lane] < 1 then
    return false
  end
  return kind ~= "pending" or not stays_first(place_key(lane, flow, kind), header, reason, fronts)
end

-- Return parked ids to the front of their lanes, the oldest first; returns how many.
local function return_parked(claim, reason, number)
  local found, gone, fronts = {}, {}, {}
  for _, id in ipairs(number > 0 and call("ZRANGE", parked_key(reason), 0, number - 1) or {}) do
    local header = stored_header(id)
    local _, _, crashes = attempts_of(id)
    local returns = header and may_return(claim, header, crashes, reason, fronts)
    if returns then
      found[#found + 1] = { id = id, header = header, crashes = crashes }
    end
    if returns or not header then
      gone[#gone + 1] = id
    end
  end
  for i = #found, 1, -1 do
    enqueue(found[i].id, found[i].header, found[i].crashes, true)
  end
  if #gone > 0 then
    call("ZREM", parked_key(reason), unpack(gone))
    forget_if_empty(reason)
  end
  return #found
end

-- Return what this worker may have now, no more than it may claim; returns how many ids.
local function unpark_claimable(claim)
  if call("EXISTS", prefix .. "parked") == 0 then
    return 0
  end
  local num_returned, most = 0, math.min(MAX_UNPARKED, claim.max_requests)
  local reasons = call("SRANDMEMBER", prefix .. "parked_claimable", MAX_REASONS)
  for _, reason in ipairs(call("SRANDMEMBER", prefix .. "parked", MAX_OTHER_REASONS)) do
    reasons[#reasons + 1] = reason
  end
  for _, reason in ipairs(reasons) do
    local names = string.match(reason, "^facts:(.*)$")
    if names and understands(claim, names) or not names and not is_paused(claim, reason) then
      num_returned = num_returned + return_parked(claim, reason, most - num_returned)
    end
  end
  return num_returned
end
