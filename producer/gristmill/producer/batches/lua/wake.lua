-- wake: make a batch due after a delay; without a delay, also wake a steward.
--
-- KEYS[1]  prefix
-- ARGV     batch, delay_ms from now
-- Returns  nothing

local prefix, call = KEYS[1], redis.call
local time = call("TIME")
local due_ms = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[2])
call("ZADD", prefix .. "batches_due", string.format("%.0f", due_ms), ARGV[1])
if ARGV[2] == "0" then
  call("LPUSH", prefix .. "steward_doorbell", "1")
  call("LTRIM", prefix .. "steward_doorbell", 0, 3)
end
