-- beat: renew a worker's lease and say what its engine does; the reply carries what the worker must abort.
--
-- KEYS[1]  prefix
-- ARGV     worker, lease_ms, load of its engine (optional: JSON, for people)
-- Returns  {0} if the lease is gone: abort everything and register under a new name;
--          else {1, now_ms, num_in_flight, id...}. A lost reply loses the ids. That costs engine
--          time only: the queue refuses to settle them.
-- Keeps    3, 5

local worker, lease_ms = ARGV[1], tonumber(ARGV[2])
if not call("ZSCORE", prefix .. "workers", worker) then
  return { 0 }
end
local time_ms = now_ms()
note_beat(lease_ms, time_ms)
call("ZADD", prefix .. "workers", "XX", time_ms + lease_ms, worker)
if ARGV[3] and ARGV[3] ~= "" then
  call("HSET", key_of("worker:" .. worker, "HLEN"), "load", ARGV[3])
end
call("PEXPIRE", prefix .. "worker:" .. worker, lease_ms * 4)
local reply = { 1, time_ms, call("HLEN", key_of("in_flight:" .. worker, "HLEN")) }
for _, id in ipairs(call("LPOP", key_of("abort:" .. worker, "LLEN"), MAX_UNPACKED) or {}) do
  reply[#reply + 1] = id
end
return reply
