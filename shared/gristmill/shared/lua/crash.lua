-- crash: the worker's engine died, the worker lives: what was in flight becomes suspect.
--
-- KEYS[1]  prefix
-- ARGV     worker, limit (ids a call), result_ttl_ms, evidence (JSON)
-- Returns  {how many ids it moved, id... of those that are dead letters now}; call again until it moves
--          none. The lease stays.
-- Keeps    2, 5

local time_ms = now_ms()
local moved, killed = give_up(ARGV[1], tonumber(ARGV[2]), ARGV[4], ARGV[3], time_ms)
if moved > 0 then
  ring_doorbell()
end
flush(ARGV[3], time_ms)
return { moved, unpack(killed) }
