-- batches: complete a batch exactly once.

local MAX_BATCHES_DONE = 10000

-- Complete a batch if it is sealed and every member is terminal; returns how many are terminal.
local function complete_batch(batch, time_ms)
  local batch_key = prefix .. "batch:" .. batch
  local fields = call("HMGET", batch_key, "total", "succeeded", "failed", "cancelled", "expired")
  local done = 0
  for i = 2, 5 do
    done = done + (tonumber(fields[i]) or 0)
  end
  local total = tonumber(fields[1] or nil)
  if total and done >= total and call("HSETNX", batch_key, "completed_ms", integer(time_ms)) == 1 then
    call("RPUSH", prefix .. "batches_done", batch)
    end_pause("batch:" .. batch)
    call("LTRIM", prefix .. "batches_done", -MAX_BATCHES_DONE, -1)
  end
  return done
end
