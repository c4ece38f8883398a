-- release: hand unfinished requests back; the attempt is not counted. They go to the front of their lanes, or with a
-- delay they wait until it is over.
--
-- KEYS[1]  prefix
-- ARGV     worker, then id, fence for each request, then delay_ms for all of them; without it, no delay
-- Returns  how many went back; what this worker no longer holds is left alone
-- Keeps    3, 5 (what SIGTERM gives back can be claimed at once)

local released, time_ms = 0, now_ms()
local delay_ms = #ARGV % 2 == 0 and tonumber(ARGV[#ARGV]) or 0

local function put_back(id, header, crashes)
  if delay_ms > 0 then
    call("ZADD", prefix .. "delayed", time_ms + delay_ms, id)
  else
    enqueue(id, header, crashes, true)
  end
end

for i = 2 * math.floor((#ARGV - 1) / 2), 2, -2 do -- backwards, so that the first given is the first in its lane
  local id, fence = ARGV[i], ARGV[i + 1]
  local delivery, header = call("HGET", prefix .. "in_flight:" .. ARGV[1], id), stored_header(id)
  if is_current(delivery, fence, header) then
    disown(id, header, 0)
    if header then
      local _, uncounted, crashes = attempts_of(id)
      set_attempts(id, delivery, uncounted + 1, crashes)
      put_back(id, header, crashes)
      count_queued(header.cost, 1)
      released = released + 1
    end
  end
end
count("released", released)
if released > 0 and delay_ms == 0 then
  ring_doorbell()
end
flush(0, time_ms)
return released
