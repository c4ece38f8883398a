-- append_events: append the events of requests that stream.
--
-- KEYS[1]  prefix
-- ARGV     worker, ttl_ms, max_bytes (of the events of one request), then for each entry:
--          id, fence, number of the entry in its delivery (from 1), events, ending ("" while more events follow)
-- Returns  a code for each: 1 appended, now or by an earlier call; 2 the stream would be too long, and its last entry
--          says so; 3 the stream has entries that are not of this format, or is ahead of the delivery; 0 the worker
--          does not hold the request. With 0 and 3 nothing changed
-- Keeps    3 (only a holder may append), 7 (a stream has a cap and a TTL)

local TOO_LONG = "stream_too_long"

local worker, ttl_ms, max_bytes = ARGV[1], ARGV[2], tonumber(ARGV[3])
local in_flight_key = key_of("in_flight:" .. worker, "HLEN")
local codes = {}

-- Return the delivery and the number of the last entry, and the bytes of all events; zeros for an empty stream.
local function end_of(events_key)
  local last = call("XREVRANGE", events_key, "+", "-", "COUNT", 1)[1]
  if not last then
    return 0, 0, 0
  end
  local delivery, number = string.match(last[1], "^(%d+)-(%d+)$")
  return tonumber(delivery), tonumber(number), tonumber(last[2][2])
end

local function append(id, fence, number, events, ending)
  local header = stored_header(id)
  if not header or not is_current(call("HGET", in_flight_key, id), fence, header) then
    return 0
  end
  local events_key, delivery = key_of("events:" .. id, "XLEN"), tonumber(string.match(fence, "^%d+"))
  local last_delivery, last_number, num_bytes = end_of(events_key)
  if delivery == last_delivery and number <= last_number then
    return 1 -- the reply of an earlier call was lost
  end
  if num_bytes + #events > max_bytes then
    events, ending = "", TOO_LONG
  end
  call("XADD", events_key, integer(delivery) .. "-" .. integer(number),
    "num_bytes", integer(num_bytes + #events), "events", events, "end", ending)
  call("PEXPIRE", events_key, ttl_ms)
  return ending == TOO_LONG and 2 or 1
end

for i = 4, #ARGV, 5 do
  -- Protected, so that a stream that somebody else wrote to fails alone.
  local is_done, code = pcall(append, ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3], ARGV[i + 4])
  codes[#codes + 1] = is_done and code or 3
end
return codes
