-- nack: give back failed requests for a retry.
--
-- KEYS[1]  prefix
-- ARGV     worker, result_ttl_ms, then for each request:
--          id, fence, delay_ms, error (JSON object with code and message)
-- Returns  a code for each: retried; dead_lettered (its attempts are used up); stale (not held)
-- Keeps    2, 3

local time_ms = now_ms()
local worker, result_ttl_ms = ARGV[1], ARGV[2]
local codes = {}

local function return_for_retry(id, fence, delay_ms, failure)
  local delivery, header = call("HGET", prefix .. "in_flight:" .. worker, id), stored_header(id)
  if not is_current(delivery, fence, header) then
    count("stale", 1)
    return "stale"
  end
  disown(id, header, header and cost_of_failure(header))
  if not header then
    return "stale"
  end
  local _, uncounted, crashes = attempts_of(id)
  local attempt = tonumber(delivery) - uncounted
  if attempt >= tonumber(header.max_attempts) then
    local outcome = '"attempt":' .. attempt .. ',"response":null,"error":' .. failure
    local record = stored_record(id)
    finish(id, #record, header_of(record), "failed", outcome, result_ttl_ms, time_ms)
    dead_letter(id, "attempts_exhausted", failure, attempt, crashes, record, time_ms)
    return "dead_lettered"
  end
  set_attempts(id, delivery, uncounted, crashes)
  count_queued(header.cost, 1)
  count("retried", 1)
  if delay_ms > 0 then
    call("ZADD", prefix .. "delayed", time_ms + delay_ms, id)
  else
    enqueue(id, header, crashes, false)
    ring_doorbell()
  end
  return "retried"
end

for i = 3, #ARGV, 4 do
  codes[#codes + 1] = return_for_retry(ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3])
end
flush(result_ttl_ms, time_ms)
return codes
