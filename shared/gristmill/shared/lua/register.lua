-- register: open a worker's lease and say what it serves. Sent twice, it renews.
--
-- KEYS[1]  prefix
-- ARGV     worker, lease_ms, order ("": leave the queue's scheduling as it is), ageing_ms, then
--          field, value... of worker:<worker>
-- Returns  now_ms; an error FORMAT if another version wrote this queue; an error INVALID if a time is no whole number, or if the worker's name is empty or has other
--          characters than printable ASCII. A "|" is refused too, as it separates the fields of owner.
-- Keeps    5, 7 (the record of a worker that dies goes with a TTL)

if ARGV[1] == "" or string.find(ARGV[1], "[^!-{}~]") then
  return redis.error_reply("INVALID worker name: use printable ASCII without blanks and '|', such as host name and a ULID")
end
if not string.match(ARGV[2] .. "|" .. ARGV[4], "^%d+|%d+$") then
  return redis.error_reply("INVALID lease_ms or ageing_ms: use whole numbers")
end
local wrong_format = format_error(true)
if wrong_format then
  return wrong_format
end
local time_ms = now_ms()
local worker_key = key_of("worker:" .. ARGV[1], "HLEN")
note_beat(tonumber(ARGV[2]), time_ms)
call("ZADD", prefix .. "workers", time_ms + ARGV[2], ARGV[1])
call("HSET", worker_key, "registered_ms", integer(time_ms), unpack(ARGV, 5))
call("PEXPIRE", worker_key, ARGV[2] * 4)
if ARGV[3] ~= "" then
  local scheduling_key, flows_key = prefix .. "scheduling", prefix .. "flows:"
  if call("EXISTS", flows_key .. "high", flows_key .. "normal", flows_key .. "low") == 0 then
    call("HDEL", scheduling_key, "is_mixed")
  elseif scheduling().order ~= ARGV[3] then
    call("HSET", scheduling_key, "is_mixed", 1) -- waiting requests lie where the old order has put them
  end
  call("HSET", scheduling_key, "order", ARGV[3], "ageing_ms", ARGV[4])
end
return time_ms
