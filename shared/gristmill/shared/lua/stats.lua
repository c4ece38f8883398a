-- stats: one consistent view of the queue. Writes nothing of its own.
--
-- KEYS[1]  prefix
-- Returns  {now_ms, {field, value, ...} of stats, {lane, depth, ...}, {worker, lease_expiry_ms, ...},
--           num_delayed, num_inbox, num_dead, used_memory, max_memory (both 0 if this user may not ask), order,
--           {tokens, busy_ms} of the pace (nil if nothing was settled), {scope, note, ...} of the pauses,
--           {reason, num_parked, ...}, {name, type, ...} of the keys that were moved away for a wrong type,
--           {producer, lease_expiry_ms, ...}, number of workers with inbox elements that they have not admitted,
--           {last_beat_ms, grace_until_ms} of times, nil if they were never set}

local wrong_format = format_error(false)
if wrong_format then
  return wrong_format
end
-- The keys that all tenants of the gateway share: its scripts and the stewards' check no types.
key_of("files_expiring", "ZCARD")
key_of("steward_doorbell", "LLEN")
for _, work in ipairs({ "steps", "files", "webhooks" }) do
  key_of("steward_time:" .. work, "ZCARD")
end
local info = redis.pcall("INFO", "memory")

local function memory(field)
  return type(info) == "string" and tonumber(string.match(info, field .. ":(%d+)")) or 0
end

local lanes = {}
for _, lane in ipairs({ "suspect", "high", "normal", "low" }) do
  local depth = 0
  for _, flow in ipairs(call("ZRANGE", prefix .. "flows:" .. lane, 0, -1)) do
    for _, kind in ipairs(scheduling().is_mixed and KINDS or { kind_of(lane) }) do
      depth = depth + call(kind == "pending" and "LLEN" or "ZCARD", place_key(lane, flow, kind))
    end
  end
  lanes[#lanes + 1], lanes[#lanes + 2] = lane, depth
end
local parked = {}
for _, reason in ipairs(call("SMEMBERS", prefix .. "parked")) do
  parked[#parked + 1], parked[#parked + 2] = reason, call("ZCARD", key_of("parked:" .. reason, "ZCARD"))
end
local wrong_types = {}
for _, name in ipairs(call("SMEMBERS", prefix .. "wrong_types")) do
  local kind = call("TYPE", prefix .. "wrong_type:" .. name).ok
  if kind ~= "none" then -- else it was deleted
    wrong_types[#wrong_types + 1], wrong_types[#wrong_types + 2] = name, kind
  end
end
local workers, num_admitting = call("ZRANGE", prefix .. "workers", 0, -1, "WITHSCORES"), 0
for i = 1, #workers, 2 do
  num_admitting = num_admitting + call("EXISTS", prefix .. "admitting:" .. workers[i])
end
return {
  now_ms(),
  call("HGETALL", prefix .. "stats"),
  lanes,
  workers,
  call("ZCARD", prefix .. "delayed"),
  call("LLEN", prefix .. "inbox") + call("LLEN", prefix .. "inbox_suspects"),
  call("ZCARD", prefix .. "dead_letters"),
  memory("used_memory"),
  memory("maxmemory"),
  scheduling().order,
  call("HMGET", prefix .. "pace", "tokens", "busy_ms"),
  call("HGETALL", prefix .. "pauses"),
  parked,
  wrong_types,
  call("ZRANGE", prefix .. "producers", 0, -1, "WITHSCORES"),
  num_admitting,
  call("HMGET", prefix .. "times", "last_beat_ms", "grace_until_ms"),
}
