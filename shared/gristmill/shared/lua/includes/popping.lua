-- popping: pop waiting ids of a lane in the order of its flows. Part of claim.

local CHUNK, FLOW_CHUNK = 32, 16 -- ids popped together; of one flow, before their cost is known

local function pop_listed(lane, flow, number, entries)
  for _, id in ipairs(number > 0 and call("LPOP", place_key(lane, flow.name, "pending"), number) or {}) do
    entries[#entries + 1] = { id = id, lane = lane, flow = flow, kind = "pending" }
  end
end

local function pop_ordered(lane, flow, kind, number, entries)
  local popped = call("ZPOPMIN", place_key(lane, flow.name, kind), number)
  for i = 1, #popped, 2 do
    entries[#entries + 1] = { id = popped[i], lane = lane, flow = flow, kind = kind, position = popped[i + 1] }
  end
end

-- Pop ids of one flow: ordered ids first. After a change of order, listed ids follow.
local function pop_flow(lane, flow, room, entries)
  local kind, is_mixed = kind_of(lane), scheduling().is_mixed
  local most = #entries + math.min(room, flow.name == "*" and CHUNK or FLOW_CHUNK)
  if kind ~= "pending" then
    pop_ordered(lane, flow, kind, most - #entries, entries)
  end
  if is_mixed or kind == "pending" then
    pop_listed(lane, flow, most - #entries, entries)
  end
  if is_mixed then
    flow.has_more = call("EXISTS", unpack(place_keys(lane, flow.name))) > 0
  else -- fewer ids than asked for: nothing is left
    flow.has_more = #entries == most and call("EXISTS", place_key(lane, flow.name, kind)) > 0
  end
end

-- Return flows of a lane and their virtual times, from one rank to another. Flows in which the scheduling puts nothing
-- are left to move_misplaced: popped here, an old backlog would hide what may be taken.
local function flows_of(lane, from, to)
  local flows_key = prefix .. "flows:" .. lane
  if lane == "suspect" or scheduling().is_fair then
    return call("ZRANGE", flows_key, from, to, "WITHSCORES")
  end
  local virtual_time = from == 0 and call("ZSCORE", flows_key, "*")
  return virtual_time and { "*", virtual_time } or {}
end

-- Pop from flows in turn. Stop at one that has more: it may not be next again until the cost of its ids is known.
-- Returns whether there may be flows after these.
local function pop_in_turn(popped, lane, found, room)
  for i = 1, #found, 2 do
    if found[i] ~= "*" or not scheduling().is_fair then
      local flow = { name = found[i], virtual_time = tonumber(found[i + 1]), cost = 0, has_more = false }
      popped.flows[#popped.flows + 1] = flow
      pop_flow(lane, flow, room - #popped.entries, popped.entries)
      if not flow.has_more then
        popped.emptied[#popped.emptied + 1] = flow.name
      end
      if flow.has_more or #popped.entries >= room then
        return false
      end
    end
  end
  return #found > 0
end

-- Return the first flow of a lane that the claim does not avoid.
local function first_flow(claim, lane)
  local found = flows_of(lane, 0, claim.num_avoided)
  for i = 1, claim.num_avoided > 0 and #found or 0, 2 do
    if not claim.avoided[found[i]] then
      return { found[i], found[i + 1] }
    end
  end
  return claim.num_avoided == 0 and found or {}
end

-- Pop ids of a lane: of the flow that is next by virtual time, and of the flows after it while they become empty.
-- Returns entries, their flows, and the names of flows that became empty.
local function pop(claim, lane, size)
  local popped = { entries = {}, flows = {}, emptied = {} }
  local room = lane == "suspect" and 1 or math.min(size, claim.max_ids - #claim.ids)
  -- Most often the first flow has enough.
  if pop_in_turn(popped, lane, first_flow(claim, lane), room) and claim.num_avoided == 0 then
    pop_in_turn(popped, lane, flows_of(lane, 1, room), room)
  end
  if #popped.emptied > 0 then
    call("ZREM", prefix .. "flows:" .. lane, unpack(popped.emptied))
  end
  claim.num_examined = claim.num_examined + #popped.entries
  return popped
end

local function put_back(claim, entry)
  entry.flow.has_more = true
  claim.num_examined = claim.num_examined - 1
  local key = place_key(entry.lane, entry.flow.name, entry.kind)
  if entry.position then
    call("ZADD", key, entry.position, entry.id)
  else
    call("LPUSH", key, entry.id)
  end
end
