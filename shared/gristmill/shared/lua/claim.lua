-- claim: lease waiting requests to a worker, and hand it what lies in the inbox.
--
-- KEYS[1]  prefix
-- ARGV     worker, nonce, max_requests, max_tokens (estimated, for the whole claim), max_suspects,
--          has_suspects (1 if the worker already runs one), max_depth, max_bytes, result_ttl_ms
-- Returns  {"LOST"} if the worker holds no lease; else
--          {"OK", now_ms, next_due_ms (-1: none), {token, element, ...} from the inbox,
--           {id, delivery, attempt, crashes, record, ...}}
--          Sent twice with one nonce, the second returns the same requests.
-- Keeps    3 (the fence is written here), 4 (expired requests end here too), 7 (bounded work),
--          8 (nothing is popped that is not held)

local MAX_PROMOTED, MAX_EXAMINED, CHUNK, MAX_INBOX = 200, 256, 8, 16
local worker, nonce = ARGV[1], ARGV[2]
local max_requests, max_tokens, max_suspects = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local has_suspects, result_ttl_ms = ARGV[6] == "1", ARGV[9]
local inflight_key, owner_key, attempts_key = prefix .. "inflight:" .. worker, prefix .. "owner", prefix .. "attempts"

if not call("ZSCORE", prefix .. "workers", worker) then
  return { "LOST" }
end
local time_ms = now_ms()
local claimed, held, owners, ids = {}, {}, {}, {}

local function add(id, delivery, uncounted, crashes, record)
  local n = #claimed
  claimed[n + 1], claimed[n + 2], claimed[n + 3], claimed[n + 4], claimed[n + 5] =
    id, delivery, delivery - uncounted, crashes, record
end

local function next_due_ms()
  local due = call("ZRANGE", prefix .. "delayed", 0, 0, "WITHSCORES")
  return due[2] and tonumber(due[2]) or -1
end

local last = call("GET", prefix .. "lastclaim:" .. worker)
if last and string.sub(last, 1, #nonce + 1) == nonce .. "|" then
  for id in string.gmatch(string.sub(last, #nonce + 2), "[^,]+") do
    local delivery, record = call("HGET", inflight_key, id), call("GET", prefix .. "request:" .. id)
    if delivery and record then
      local _, uncounted, crashes = attempts_of(id)
      add(id, tonumber(delivery), uncounted, crashes, record)
    end
  end
  return { "OK", time_ms, next_due_ms(), call("HGETALL", prefix .. "inbox:" .. worker), claimed }
end

-- Due retries and start times return to their lanes.
for _, id in ipairs(call("ZRANGE", prefix .. "delayed", 0, time_ms, "BYSCORE", "LIMIT", 0, MAX_PROMOTED)) do
  call("ZREM", prefix .. "delayed", id)
  local record = call("GET", prefix .. "request:" .. id)
  if record then
    local header = header_of(record)
    local _, _, crashes = attempts_of(id)
    enqueue(id, header.tenant, header.priority, crashes, false)
  end
end

-- The inbox, unless the queue is at its caps: then its elements stay where they are.
local has_taken_inbox = false
if call("LLEN", prefix .. "inbox") > 0 then
  local now = call("HMGET", prefix .. "stats", "queued", "in_flight", "bytes")
  local depth = (tonumber(now[1]) or 0) + (tonumber(now[2]) or 0)
  if depth < tonumber(ARGV[7]) and (tonumber(now[3]) or 0) < tonumber(ARGV[8]) then
    for _, element in ipairs(call("LPOP", prefix .. "inbox", MAX_INBOX) or {}) do
      local token = call("HINCRBY", prefix .. "stats", "inbox_taken", 1)
      call("HSET", prefix .. "inbox:" .. worker, token, element)
      has_taken_inbox = true
    end
  end
end

local spent, examined, is_spent, num_suspects = 0, 0, false, 0

local function bury(id, record, header, attempt, crashes)
  local outcome = outcome_without_response(attempt, "unreadable", "the stored record cannot be read; a dead letter has its bytes")
  if finish(id, record, header, "failed", outcome, result_ttl_ms, time_ms) then
    dead_letter(id, "unreadable", "", attempt, crashes, record, time_ms)
    count("queued", -1)
  end
end

local function expire(id, record, header, attempt)
  local outcome = outcome_without_response(attempt, "expired", "the deadline passed while the request waited")
  if finish(id, record, header, "expired", outcome, result_ttl_ms, time_ms) then
    count("queued", -1)
  end
end

-- Take one id of a popped chunk; returns its cost, or nil if it must go back to the front.
local function take(id, record, is_elsewhere, attempts, lane, tenant)
  if not record or is_elsewhere then
    return 0 -- a tombstone, or a left-over entry of an id that runs or is delayed
  end
  local header = header_of(record)
  local deliveries, uncounted, crashes = parse_attempts(attempts)
  if not header.is_readable then
    bury(id, record, header, deliveries - uncounted, crashes)
    return 0
  end
  if header.deadline_ms > 0 and header.deadline_ms <= time_ms then
    expire(id, record, header, deliveries - uncounted)
    return 0
  end
  if lane ~= (crashes > 0 and "suspect" or header.priority) or tenant ~= header.tenant then
    return 0 -- a left-over entry: the id was submitted again and waits elsewhere
  end
  local runs_alone = lane == "suspect" and crashes > 1
  if runs_alone and (has_suspects or num_suspects > 0) then
    max_suspects = 0
    return nil
  end
  if #ids > 0 and spent + header.cost > max_tokens then
    is_spent = true
    return nil
  end
  local delivery = deliveries + 1
  add(id, delivery, uncounted, crashes, record)
  ids[#ids + 1] = id
  held[#held + 1], held[#held + 2] = id, delivery
  owners[#owners + 1], owners[#owners + 2] = id, worker
  if attempts then
    set_attempts(id, delivery, uncounted, crashes)
  end
  if lane == "suspect" then
    num_suspects = num_suspects + 1
    max_suspects = runs_alone and 0 or max_suspects - 1
  end
  spent = spent + header.cost
  return header.cost
end

-- Pop a chunk of one tenant; returns what it cost in estimated tokens.
local function take_chunk(lane, tenant)
  local pending_key = prefix .. "pending:" .. lane .. ":" .. tenant
  local room = lane == "suspect" and 1 or math.min(CHUNK, max_requests - #ids)
  local chunk = call("LPOP", pending_key, room)
  if not chunk then
    return 0, false
  end
  examined = examined + #chunk
  local request_keys = {}
  for i, id in ipairs(chunk) do
    request_keys[i] = prefix .. "request:" .. id
  end
  local records = call("MGET", unpack(request_keys))
  local chunk_owners = call("HMGET", owner_key, unpack(chunk))
  local chunk_attempts = call("HMGET", attempts_key, unpack(chunk))
  local due = call("ZMSCORE", prefix .. "delayed", unpack(chunk))
  local seen, cost = {}, 0
  for i, id in ipairs(chunk) do
    local item_cost = take(id, records[i], chunk_owners[i] or due[i] or seen[id], chunk_attempts[i], lane, tenant)
    if not item_cost then
      examined = examined - (#chunk - i + 1)
      for j = #chunk, i, -1 do
        call("LPUSH", pending_key, chunk[j])
      end
      break
    end
    seen[id] = true
    cost = cost + item_cost
  end
  if #held > 0 then
    call("HSET", inflight_key, unpack(held))
    call("HSET", owner_key, unpack(owners))
    held, owners = {}, {}
  end
  return cost, call("EXISTS", pending_key) == 1
end

local function weight_of(tenant) -- a weight that makes no sense is 1
  local weight = tonumber(call("HGET", prefix .. "weights", tenant) or 1)
  return weight and weight > 0 and weight or 1
end

local function wants_more(lane)
  return #ids < max_requests and not is_spent and examined < MAX_EXAMINED and (lane ~= "suspect" or max_suspects > 0)
end

-- Strict order of lanes; within one, the tenant with the least virtual time is next
-- (start-time fair queueing, Goyal, Vin and Cheng 1996).
for _, lane in ipairs({ "suspect", "high", "normal", "low" }) do
  local ring_key = prefix .. "ring:" .. lane
  while wants_more(lane) do
    local first = call("ZRANGE", ring_key, 0, 0, "WITHSCORES")
    if #first == 0 then
      break
    end
    local tenant, vtime = first[1], first[2]
    local cost, has_more = take_chunk(lane, tenant)
    call("HSET", prefix .. "vtime", lane, vtime)
    if not has_more then
      call("ZREM", ring_key, tenant)
    elseif cost > 0 then
      call("ZINCRBY", ring_key, cost / weight_of(tenant), tenant)
    end
  end
end

if #ids > 0 then
  count("queued", -#ids)
  count("in_flight", #ids)
  call("SET", prefix .. "lastclaim:" .. worker, nonce .. "|" .. table.concat(ids, ","))
end
flush(result_ttl_ms, time_ms)

-- Pass the bell on while work remains, but only after progress: a worker that may take nothing of what
-- remains (suspects, an inbox over the caps) must not wake itself for ever.
local queued = tonumber(call("HGET", prefix .. "stats", "queued") or 0)
if queued <= call("ZCARD", prefix .. "delayed") and call("LLEN", prefix .. "inbox") == 0 then
  call("DEL", prefix .. "doorbell")
elseif examined > 0 or has_taken_inbox then
  ring_doorbell()
end
return { "OK", time_ms, next_due_ms(), call("HGETALL", prefix .. "inbox:" .. worker), claimed }
