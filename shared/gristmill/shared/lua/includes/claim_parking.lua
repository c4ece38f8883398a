-- claim_parking: park what this worker may not have, and return what it may. Part of claim.

-- Read which facts the worker understands, which tenants come last, and what is paused.
local function read_permits(claim)
  for name in string.gmatch(ARGV[11] or "", "[^,]+") do
    claim.understands[name] = true
  end
  for tenant in string.gmatch(ARGV[17] or "", "[^,]+") do
    claim.avoided[tenant], claim.num_avoided = true, claim.num_avoided + 1
  end
  for _, scope in ipairs(call("HKEYS", prefix .. "pauses")) do
    claim.pauses[scope], claim.has_pauses = true, true
  end
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
  if header.batch ~= "" and claim.pauses["batch:" .. header.batch] then
    return "batch:" .. header.batch
  end
  local names = header.facts ~= "" and required_facts(header) or ""
  return not understands(claim, names) and "facts:" .. names or nil
end

local function park(id, header, reason)
  call("ZADD", parked_key(reason), header.enqueued_ms, id)
  call("SADD", prefix .. "parked", reason)
end

-- Return parked ids to the front of their lanes, the oldest first.
local function return_parked(reason, number)
  local popped = call("ZPOPMIN", parked_key(reason), number)
  for i = #popped - 1, 1, -2 do
    return_to_lane(popped[i], true)
  end
  if call("EXISTS", parked_key(reason)) == 0 then
    call("SREM", prefix .. "parked", reason)
  end
  return #popped / 2
end

-- Return what this worker may have now, no more than it may claim: the rest keeps its order; returns how many ids.
local function unpark_claimable(claim)
  local num_returned, most = 0, math.min(MAX_UNPARKED, claim.max_requests)
  if call("EXISTS", prefix .. "parked") == 1 then
    for _, reason in ipairs(call("SRANDMEMBER", prefix .. "parked", MAX_REASONS)) do
      local names = string.match(reason, "^facts:(.*)$")
      if names and understands(claim, names) or not names and not claim.pauses[reason] then
        num_returned = num_returned + return_parked(reason, most - num_returned)
      end
      if num_returned >= most then
        break
      end
    end
  end
  return num_returned
end
