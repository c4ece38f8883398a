-- overdue: tell since when batches have been due that no steward holds. Writes nothing.
--
-- KEYS[1]  prefix
-- ARGV     kinds of work (steps, files, webhooks)
-- Returns  for each kind, ms since the longest due of these batches became due; 0 without such a batch.
--          The look is bounded: 1,000 tenants, the 10 longest due batches of each.

local prefix, call = KEYS[1], redis.call
local MAX_TENANTS, MAX_HELD = 1000, 10
local time = call("TIME")
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local function first_due_ms(due_key)
  if call("TYPE", due_key).ok ~= "zset" then
    return now_ms
  end
  local found = call("ZRANGE", due_key, 0, MAX_HELD - 1, "WITHSCORES")
  for i = 1, #found, 2 do
    if call("EXISTS", prefix .. "batch_lease:" .. found[i]) == 0 then
      return tonumber(found[i + 1])
    end
  end
  return now_ms
end

local overdue_ms = {}
for n, work in ipairs(ARGV) do
  overdue_ms[n] = 0
  for _, tenant in ipairs(call("ZRANGE", prefix .. "steward_time:" .. work, 0, MAX_TENANTS - 1)) do
    local due_key = prefix .. "batches_due:" .. work .. ":" .. tenant
    overdue_ms[n] = math.max(overdue_ms[n], now_ms - first_due_ms(due_key))
  end
end
return overdue_ms
