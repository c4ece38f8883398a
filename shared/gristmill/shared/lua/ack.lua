-- ack: write terminal records in bulk.
--
-- KEYS[1]  prefix
-- ARGV     worker, result_ttl_ms, then for each request:
--          id, delivery, status (succeeded or failed), outcome (inside of a JSON object)
-- Returns  a code for each: 1 stored; 2 stored late (a success from a worker that no longer holds
--          it, accepted since nobody had finished; its holder is told to abort); 0 changed nothing
-- Keeps    2 (one terminal record), 3 (only a holder may fail a request)

local time_ms = now_ms()
local worker, result_ttl_ms = ARGV[1], ARGV[2]
local inflight_key = prefix .. "inflight:" .. worker
local codes = {}

local function settle(id, delivery, status, outcome)
  local is_held = call("HGET", inflight_key, id) == delivery
  local record = call("GET", prefix .. "request:" .. id)
  if not record or not (is_held or status == "succeeded") then
    if is_held then
      disown(id)
    end
    return 0
  end
  if not finish(id, record, header_of(record), status, outcome, result_ttl_ms, time_ms) then
    return 0
  end
  if is_held then
    call("HDEL", inflight_key, id)
    call("HDEL", prefix .. "owner", id)
    count("in_flight", -1)
    return 1
  end
  local holder = disown(id)
  count("late", 1)
  if not holder then
    count("queued", -1)
    call("ZREM", prefix .. "delayed", id)
  elseif holder ~= worker then
    call("RPUSH", prefix .. "abort:" .. holder, id)
  end
  return 2
end

for i = 3, #ARGV, 4 do
  local code = settle(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
  if code == 0 then
    count("stale", 1)
  end
  codes[#codes + 1] = code
end
flush(result_ttl_ms, time_ms)
return codes
