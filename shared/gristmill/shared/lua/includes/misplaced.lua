-- misplaced: after a change of order, move waiting ids to where the new order looks for them. Part of claim.

local MAX_MOVED = 128 -- ids that one claim moves

-- Return whether the scheduling puts anything there; it must agree with place_of.
local function is_place(lane, flow, kind)
  return (flow == "*") ~= scheduling().is_fair and kind == scheduling().kind
    and (lane == "normal" or scheduling().has_lanes)
end

-- Move ids out of one key; returns how many.
local function move_from(key, kind, number)
  local popped, num_moved = call(kind == "pending" and "LPOP" or "ZPOPMIN", key, number) or {}, 0
  for i = 1, #popped, kind == "pending" and 1 or 2 do
    return_to_lane(popped[i], false)
    num_moved = num_moved + 1
  end
  return num_moved
end

-- Move some of what waits elsewhere, first what is next to be claimed; returns how many ids.
local function move_misplaced()
  local num_moved, is_whole = 0, true
  for _, lane in ipairs({ "high", "normal", "low" }) do
    local flows_key = prefix .. "flows:" .. lane
    is_whole = is_whole and call("ZCARD", flows_key) <= MAX_MOVED
    for _, flow in ipairs(call("ZRANGE", flows_key, 0, MAX_MOVED - 1)) do
      for _, kind in ipairs(KINDS) do
        if num_moved < MAX_MOVED and not is_place(lane, flow, kind) then
          num_moved = num_moved + move_from(place_key(lane, flow, kind), kind, MAX_MOVED - num_moved)
        end
      end
      if call("EXISTS", unpack(place_keys(lane, flow))) == 0 then
        call("ZREM", flows_key, flow)
      end
    end
  end
  if is_whole and num_moved == 0 then
    call("HDEL", prefix .. "scheduling", "is_mixed")
  end
  return num_moved
end
