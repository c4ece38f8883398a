-- clear_lanes: remove the tombstones from the lanes of one tenant: ids that wait and have no request any more.
--
-- KEYS[1]  prefix
-- ARGV     tenant, limit (ids that are looked at in each lane)
-- Returns  how many were removed. Call it until 0: a lane may have more, and requests that live stay where they are
-- Keeps    8

local tenant, limit = ARGV[1], tonumber(ARGV[2])
local num_removed = 0

local function has_request(id)
  return call("EXISTS", prefix .. "request:" .. id) == 1
end

local function clear_list(key)
  local kept = {}
  for _, id in ipairs(call("LPOP", key, limit) or {}) do
    if has_request(id) then
      kept[#kept + 1] = id
    else
      num_removed = num_removed + 1
    end
  end
  for i = #kept, 1, -1 do
    call("LPUSH", key, kept[i])
  end
end

local function clear_ordered(key)
  for _, id in ipairs(call("ZRANGE", key, 0, limit - 1)) do
    if not has_request(id) then
      num_removed = num_removed + call("ZREM", key, id)
    end
  end
end

for _, lane in ipairs({ "suspect", "high", "normal", "low" }) do
  local keys = place_keys(lane, tenant)
  clear_list(keys[1])
  for i = 2, #keys do
    clear_ordered(keys[i])
  end
  if call("EXISTS", unpack(keys)) == 0 then
    call("ZREM", prefix .. "flows:" .. lane, tenant)
    call("ZREM", prefix .. "debt:" .. lane, tenant)
  end
end
return num_removed
