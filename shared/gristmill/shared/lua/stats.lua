-- stats: one consistent view of the queue. Reads only.
--
-- KEYS[1]  prefix
-- Returns  {now_ms, {field, value, ...} of stats, {lane, depth, ...}, num_delayed, num_inbox,
--           num_dead, {worker, lease_expiry_ms, ...}}

local lanes = {}
for _, lane in ipairs({ "suspect", "high", "normal", "low" }) do
  local depth = 0
  for _, tenant in ipairs(call("ZRANGE", prefix .. "ring:" .. lane, 0, -1)) do
    depth = depth + call("LLEN", prefix .. "pending:" .. lane .. ":" .. tenant)
  end
  lanes[#lanes + 1], lanes[#lanes + 2] = lane, depth
end
return {
  now_ms(),
  call("HGETALL", prefix .. "stats"),
  lanes,
  call("ZCARD", prefix .. "delayed"),
  call("LLEN", prefix .. "inbox"),
  call("ZCARD", prefix .. "dead"),
  call("ZRANGE", prefix .. "workers", 0, -1, "WITHSCORES"),
}
