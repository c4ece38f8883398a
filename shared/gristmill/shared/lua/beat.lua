-- beat: renew a worker's lease and say what its engine does; the reply carries what the worker must abort.
--
-- KEYS[1]  prefix
-- ARGV     worker, lease_ms, load of its engine (optional: JSON, for people), and maybe upkeep_ms: then the workers of the
--          queue take turns with its upkeep, one turn in so many ms. Who has the turn calls reap, expire and stats
--          (with view_ttl_ms).
-- Returns  {0} if the lease is gone: abort everything and register under a new name;
--          else {1, now_ms, num_in_flight, id...}. A lost reply loses the ids. That costs engine
--          time only: the queue refuses to settle them. With upkeep_ms there are two parts before the ids: 1 if this
--          worker has the turn, else 0; the view that stats stored (nil if it has the turn, or without one).
-- Keeps    3, 5

local worker, lease_ms, upkeep_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[4])

-- Return the stored view, or false.
local function stored_view()
  local packed = call("MGET", prefix .. "view")[1]
  local is_whole, view = pcall(cmsgpack.unpack, packed or "")
  return is_whole and type(view) == "table" and view
end

if not call("ZSCORE", prefix .. "workers", worker) then
  return { 0 }
end
local time_ms = now_ms()
local has_turn = note_beat(lease_ms, time_ms, upkeep_ms)
call("ZADD", prefix .. "workers", "XX", time_ms + lease_ms, worker)
if ARGV[3] and ARGV[3] ~= "" then
  call("HSET", key_of("worker:" .. worker, "HLEN"), "load", ARGV[3])
end
call("PEXPIRE", prefix .. "worker:" .. worker, lease_ms * 4)
local reply = { 1, time_ms, call("HLEN", key_of("in_flight:" .. worker, "HLEN")) }
if upkeep_ms then
  reply[4], reply[5] = has_turn and 1 or 0, not has_turn and stored_view()
end
for _, id in ipairs(call("LPOP", key_of("abort:" .. worker, "LLEN"), MAX_UNPACKED) or {}) do
  reply[#reply + 1] = id
end
return reply
