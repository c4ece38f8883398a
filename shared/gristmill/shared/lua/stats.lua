-- stats: one consistent view of the queue. Writes nothing of its own, except the view if it is to be stored.
--
-- KEYS[1]  prefix
-- ARGV     nothing, or view_ttl_ms: then the view is stored for so long, with numbers in place of the workers' names
-- Returns  {now_ms, {field, value, ...} of stats, {lane, depth, ...}, {worker, lease_expiry_ms, ...},
--           num_delayed, num_inbox, num_dead, used_memory, max_memory (both 0 if this user may not ask), order,
--           {tokens, busy_ms} of the pace (nil if nothing was settled), {scope, note, ...} of the pauses,
--           {reason, num_parked, ...}, {name, type, ...} of the keys that were moved away for a wrong type,
--           {producer, lease_expiry_ms, ...}, number of workers with inbox elements that they have not admitted,
--           {last_beat_ms, grace_until_ms} of times, nil if they were never set,
--           {rank, deadline_ms, ...} of at most 16 deadlines from the earliest (rank 1) to the latest,
--           number of braked workers, dead ones included,
--           {lane, enqueued_ms, ...} of the request that has waited longest in a lane, as far as the heads of 64 lists
--           tell; a lane without an entry is empty or has another order than first come first served}

local MAX_DEADLINES, MAX_HEADS = 16, 64
local NUM_TOMBSTONES = 4 -- ids at the head of a list that may have ended before the list counts as unknown

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

-- Return when the first request of a list was submitted, or nil. An id without a record has ended.
local function first_enqueued_ms(key)
  for _, id in ipairs(call("LRANGE", key, 0, NUM_TOMBSTONES - 1)) do
    local beginning = redis.pcall("GETRANGE", prefix .. "request:" .. id, 0, 31)
    local enqueued_ms = type(beginning) == "string" and string.match(beginning, "^1|(%d+)|")
    if enqueued_ms then
      return tonumber(enqueued_ms)
    end
  end
end

-- Return {lane, depth, ...} and {lane, enqueued_ms, ...}.
local function read_lanes()
  local lanes, oldest, num_heads = {}, {}, 0
  for _, lane in ipairs({ "suspect", "high", "normal", "low" }) do
    local depth, lane_ms = 0, nil
    for _, flow in ipairs(call("ZRANGE", prefix .. "flows:" .. lane, 0, -1)) do
      for _, kind in ipairs(scheduling().is_mixed and KINDS or { kind_of(lane) }) do
        local key = place_key(lane, flow, kind)
        depth = depth + call(kind == "pending" and "LLEN" or "ZCARD", key)
        if kind == "pending" and num_heads < MAX_HEADS then
          num_heads = num_heads + 1
          local first_ms = first_enqueued_ms(key)
          lane_ms = first_ms and math.min(first_ms, lane_ms or first_ms) or lane_ms
        end
      end
    end
    lanes[#lanes + 1], lanes[#lanes + 2] = lane, depth
    if lane_ms then
      oldest[#oldest + 1], oldest[#oldest + 2] = lane, lane_ms
    end
  end
  return lanes, oldest
end

local function read_parked()
  local parked = {}
  for _, reason in ipairs(call("SMEMBERS", prefix .. "parked")) do
    parked[#parked + 1], parked[#parked + 2] = reason, call("ZCARD", key_of("parked:" .. reason, "ZCARD"))
  end
  return parked
end

local function read_wrong_types()
  local wrong_types = {}
  for _, name in ipairs(call("SMEMBERS", prefix .. "wrong_types")) do
    local kind = call("TYPE", prefix .. "wrong_type:" .. name).ok
    if kind ~= "none" then -- else it was deleted
      wrong_types[#wrong_types + 1], wrong_types[#wrong_types + 2] = name, kind
    end
  end
  return wrong_types
end

-- Return {rank, deadline_ms, ...} of deadlines at even distances, the earliest and the latest among them.
local function read_deadlines()
  local deadlines, num_deadlines = {}, call("ZCARD", prefix .. "deadlines")
  for i = 0, math.min(num_deadlines, MAX_DEADLINES) - 1 do
    local rank = 1 + math.floor(i * (num_deadlines - 1) / math.max(1, math.min(num_deadlines, MAX_DEADLINES) - 1))
    local found = call("ZRANGE", prefix .. "deadlines", rank - 1, rank - 1, "WITHSCORES")
    deadlines[#deadlines + 1], deadlines[#deadlines + 2] = rank, tonumber(found[2])
  end
  return deadlines
end

-- Return {worker, lease_expiry_ms, ...}, the number of workers that admit inbox elements, and of braked workers.
local function read_workers()
  local workers, num_admitting, num_braked = call("ZRANGE", prefix .. "workers", 0, -1, "WITHSCORES"), 0, 0
  for i = 1, #workers, 2 do
    num_braked = num_braked + call("HEXISTS", key_of("worker:" .. workers[i], "HLEN"), "braked")
  end
  for from = 1, #workers, 2 * MAX_UNPACKED do
    local admitting_keys = {}
    for i = from, math.min(from + 2 * MAX_UNPACKED, #workers) - 1, 2 do
      admitting_keys[#admitting_keys + 1] = prefix .. "admitting:" .. workers[i]
    end
    num_admitting = num_admitting + call("EXISTS", unpack(admitting_keys))
  end
  return workers, num_admitting, num_braked
end

local lanes, oldest = read_lanes()
local workers, num_admitting, num_braked = read_workers()
local view = {
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
  read_parked(),
  read_wrong_types(),
  call("ZRANGE", prefix .. "producers", 0, -1, "WITHSCORES"),
  num_admitting,
  call("HMGET", prefix .. "times", "last_beat_ms", "grace_until_ms"),
  read_deadlines(),
  num_braked,
  oldest,
}
if ARGV[1] then
  local numbered = {} -- the names of some hundred workers would make each beat longer, and it needs their leases only
  for i = 1, #workers, 2 do
    numbered[i], numbered[i + 1] = integer(i), workers[i + 1]
  end
  view[4] = numbered
  call("SET", prefix .. "view", cmsgpack.pack(view), "PX", ARGV[1])
  view[4] = workers
end
return view
