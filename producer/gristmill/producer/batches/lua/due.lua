-- due: return the batches that are due and that no steward holds, longest due first.
--
-- KEYS[1]  prefix
-- ARGV     limit: how many due batches to look at
-- Returns  their ids

local prefix, call = KEYS[1], redis.call
local time = call("TIME")
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local free = {}
for _, batch in ipairs(call("ZRANGE", prefix .. "batches_due", "-inf", now_ms, "BYSCORE", "LIMIT", 0, ARGV[1])) do
  if call("EXISTS", prefix .. "batch_lease:" .. batch) == 0 then
    free[#free + 1] = batch
  end
end
return free
