-- expire: end requests whose deadline has passed, and drop dead letters past their retention.
-- Every beat calls it, and so does a client that waits.
--
-- KEYS[1]  prefix
-- ARGV     limit (ids a call), result_ttl_ms, dead_letter_ttl_ms
-- Returns  how many requests expired
-- Keeps    2, 4, 7

local wrong_format = format_error(false)
if wrong_format then
  return wrong_format
end
local limit, time_ms = tonumber(ARGV[1]), now_ms()
local expired = 0
for _, id in ipairs(call("ZRANGE", prefix .. "deadlines", 0, time_ms, "BYSCORE", "LIMIT", 0, limit)) do
  if finish_anywhere(id, "expired", "the deadline passed before the request finished", ARGV[2], time_ms) then
    expired = expired + 1
  else
    call("ZREM", prefix .. "deadlines", id)
  end
end
local old = call("ZRANGE", prefix .. "dead_letters", 0, time_ms - ARGV[3], "BYSCORE", "LIMIT", 0, limit)
if #old > 0 then
  drop_dead_letters(old)
end
flush(ARGV[2], time_ms)
return expired
