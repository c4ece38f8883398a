-- crash: make suspect what was in flight when an engine died. Its worker lives and keeps its lease.
--
-- KEYS[1]  prefix
-- ARGV     worker, limit (ids a call), result_ttl_ms, evidence (JSON)
-- Returns  {how many ids it moved, id... of those that are dead letters now}; call again until it moves
--          none
-- Keeps    2, 5

local time_ms = now_ms()
local num_moved, dead_ids = give_back_as_suspects(ARGV[1], tonumber(ARGV[2]), ARGV[4], ARGV[3], time_ms)
if num_moved > 0 then
  ring_doorbell()
end
flush(ARGV[3], time_ms)
return { num_moved, unpack(dead_ids) }
