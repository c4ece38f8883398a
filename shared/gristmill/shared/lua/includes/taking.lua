-- taking: take requests from one lane until the claim has enough. Part of claim.

local MAX_EXAMINED = 256 -- ids that one claim pops, tombstones and overdue requests included
local TURN = 8 -- requests that a lane gets before the others when it has waited too long

-- Take popped ids in order. The first that must go back goes back with all that follow.
local function take_entries(claim, entries)
  local names, request_keys = {}, {}
  for i, entry in ipairs(entries) do
    names[i], request_keys[i] = entry.id, prefix .. "request:" .. entry.id
  end
  local records, owners = call("MGET", unpack(request_keys)), call("HMGET", prefix .. "owner", unpack(names))
  local attempts = claim.has_attempts and call("HMGET", prefix .. "attempts", unpack(names)) or {}
  local due = claim.has_delayed and call("ZMSCORE", prefix .. "delayed", unpack(names)) or {}
  for i, entry in ipairs(entries) do
    local is_elsewhere = owners[i] or due[i] or claim.is_taken[entry.id]
    local cost = take(claim, entry, records[i], is_elsewhere, attempts[i])
    if not cost then
      for j = #entries, i, -1 do
        put_back(claim, entries[j])
      end
      return
    end
    entry.flow.cost = entry.flow.cost + cost
  end
end

-- Take up to `size` requests of a lane; returns false if the lane has none that the scheduling would take.
local function take_chunk(claim, lane, size)
  local popped = pop(claim, lane, size)
  if #popped.entries + #popped.emptied == 0 then
    return false
  end
  if #popped.entries > 0 then
    read_tenants(popped.flows)
    take_entries(claim, popped.entries)
  end
  charge(claim, lane, popped.flows)
  return true
end

local function wants_more(claim, lane)
  return #claim.ids < claim.max_requests and not claim.is_spent and claim.num_examined < MAX_EXAMINED
    and (lane ~= "suspect" or claim.max_suspects > 0)
end

-- Take from a lane until the claim has enough; `turn` bounds the requests taken.
local function take_from(claim, lane, turn)
  local before = #claim.ids
  while wants_more(claim, lane) and take_chunk(claim, lane, turn or CHUNK) and not turn do
  end
  write_virtual_time(claim, lane)
  if #claim.ids > before and lane ~= "suspect" and lane ~= "high" then
    call("HSET", prefix .. "times", lane .. "_served_ms", integer(claim.time_ms))
  end
end
