-- seal: say how many requests a batch has; it completes when that many are terminal.
--
-- KEYS[1]  prefix
-- ARGV     batch, total
-- Returns  how many are terminal so far; an error INVALID if the total is no whole number
-- Keeps    2 (the crossing to complete pushes the batch to batches_done exactly once)

local wrong_format = format_error(true)
if wrong_format then
  return wrong_format
end
if not string.match(ARGV[2] or "", "^%d+$") then
  return redis.error_reply("INVALID total of the batch: use a whole number")
end
local batch_key = key_of("batch:" .. ARGV[1], "HLEN")
call("HSET", batch_key, "total", ARGV[2])
call("PEXPIRE", batch_key, 7 * DAY_MS)
return complete_batch(ARGV[1], now_ms())
