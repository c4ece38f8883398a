-- leases: notice that Redis was away, and close the lease of a worker.

-- A pause of all beats longer than four fifths of a lease means that Redis was away, not the workers. Every worker then gets one
-- lease to come back before any is reaped.
--
-- Returns whether the last turn of upkeep began `upkeep_ms` ago or earlier; then the caller has the next one. Without
-- `upkeep_ms` it has none.
local function note_beat(lease_ms, time_ms, upkeep_ms)
  local times = call("HMGET", prefix .. "times", "last_beat_ms", "upkeep_ms")
  local last_ms, since_upkeep_ms = tonumber(times[1] or time_ms), time_ms - (tonumber(times[2] or nil) or 0)
  local now = { "last_beat_ms", integer(time_ms) }
  if time_ms - last_ms > lease_ms * 0.8 then
    now[#now + 1], now[#now + 2] = "grace_until_ms", integer(time_ms + lease_ms)
  end
  local has_turn = upkeep_ms and (since_upkeep_ms >= upkeep_ms or since_upkeep_ms < 0) -- a clock may be set back
  if has_turn then
    now[#now + 1], now[#now + 2] = "upkeep_ms", integer(time_ms)
  end
  call("HSET", prefix .. "times", unpack(now))
  return has_turn
end

-- Put what a worker took from the inbox and never admitted at the front of a LIST, oldest first.
local function return_elements(worker, list)
  local admitting_key = key_of("admitting:" .. worker, "HLEN")
  local tokens = call("HKEYS", admitting_key)
  table.sort(tokens, function(a, b) return tonumber(a) > tonumber(b) end)
  for _, token in ipairs(tokens) do
    call("LPUSH", prefix .. list, call("HGET", admitting_key, token))
  end
  call("DEL", admitting_key)
end

-- Return the token of the element that a worker took from inbox_suspects and has not admitted, or false.
local function suspect_token(worker)
  local token = call("HGET", key_of("worker:" .. worker, "HLEN"), "suspect_element")
  return token and call("HEXISTS", key_of("admitting:" .. worker, "HLEN"), token) == 1 and token
end

local function close_lease(worker)
  call("ZREM", prefix .. "workers", worker)
  call("UNLINK", prefix .. "worker:" .. worker, prefix .. "last_claim:" .. worker, prefix .. "abort:" .. worker)
end
