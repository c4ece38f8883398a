-- lease_producer: say that a producer is still submitting, or that it has submitted everything. Sent twice, it renews.
--
-- KEYS[1]  prefix
-- ARGV     producer, lease_ms (0: it has submitted everything)
-- Returns  now_ms; an error FORMAT if another version wrote this queue; an error INVALID if lease_ms is no whole number
--          of at most nine digits, or if the producer's name breaks the rule for names
-- Keeps    7 (leases of dead producers go with the next call, and the key with the last lease)

if #ARGV[1] > 128 or not string.match(ARGV[1], "^[%w._:/@=+-]+$") or not string.match(ARGV[2] or "", "^%d+$") or #ARGV[2] > 9 then
  return redis.error_reply("INVALID producer or lease_ms: use a name of at most 128 letters, digits and . _ : / @ = + -, and a whole number of at most 9 digits")
end
local wrong_format = format_error(true)
if wrong_format then
  return wrong_format
end
local producers_key, lease_ms, time_ms = prefix .. "producers", tonumber(ARGV[2]), now_ms()
call("ZREMRANGEBYSCORE", producers_key, "-inf", integer(time_ms))
if lease_ms == 0 then
  call("ZREM", producers_key, ARGV[1])
else
  call("ZADD", producers_key, integer(time_ms + lease_ms), ARGV[1])
  call("PEXPIRE", producers_key, ARGV[2], "NX")
  call("PEXPIRE", producers_key, ARGV[2], "GT") -- another producer may have a longer lease
end
return time_ms
