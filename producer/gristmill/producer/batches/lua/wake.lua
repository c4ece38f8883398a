-- wake: make a batch due after a delay; without a delay, also wake a steward.
--
-- KEYS[1]  prefix
-- ARGV     batch, tenant, work (steps, files or webhooks), delay_ms from now
-- Returns  nothing

local prefix, call = KEYS[1], redis.call
local batch, tenant, work, delay_ms = unpack(ARGV)
local time = call("TIME")
local due_ms = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(delay_ms)
call("ZADD", prefix .. "batches_due:" .. work .. ":" .. tenant, string.format("%.0f", due_ms), batch)
call("ZADD", prefix .. "steward_time:" .. work, "NX", 0, tenant)
if delay_ms == "0" then
  call("LPUSH", prefix .. "steward_doorbell", "1")
  call("LTRIM", prefix .. "steward_doorbell", 0, 3)
end
