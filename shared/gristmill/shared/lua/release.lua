-- release: hand unfinished requests back to the front of their lanes; the attempt is not counted.
--
-- KEYS[1]  prefix
-- ARGV     worker, then id, delivery for each request
-- Returns  how many went back; what this worker no longer holds is left alone
-- Keeps    3, 5 (what SIGTERM gives back can be claimed at once)

local released = 0
for i = #ARGV - 1, 2, -2 do -- backwards, so that the first given is the first in its lane
  local id, delivery = ARGV[i], ARGV[i + 1]
  if call("HGET", prefix .. "in_flight:" .. ARGV[1], id) == delivery then
    local record = call("GET", prefix .. "request:" .. id)
    local header = record and header_of(record)
    disown(id, header and header.cost or 0)
    if header then
      local _, uncounted, crashes = attempts_of(id)
      set_attempts(id, delivery, uncounted + 1, crashes)
      enqueue(id, header, crashes, true)
      count_queued(header.cost, 1)
      released = released + 1
    end
  end
end
count("released", released)
if released > 0 then
  ring_doorbell()
end
flush(0, now_ms())
return released
