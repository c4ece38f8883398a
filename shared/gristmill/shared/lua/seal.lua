-- seal: say how many requests a batch has; it completes when that many are terminal.
--
-- KEYS[1]  prefix
-- ARGV     batch, total
-- Returns  how many are terminal so far
-- Keeps    2 (the crossing to complete pushes the batch to batches_done exactly once)

local batch_key = prefix .. "batch:" .. ARGV[1]
call("HSET", batch_key, "total", ARGV[2])
call("PEXPIRE", batch_key, 7 * DAY_MS)
return complete_batch(ARGV[1], now_ms())
