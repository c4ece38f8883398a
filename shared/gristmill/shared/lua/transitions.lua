-- The schema of one queue and the transitions that several verbs share. Every verb's script is this
-- text followed by <verb>.lua; a script runs whole or not at all, so each transition is atomic.
--
-- KEYS[1] is the prefix "gm:{queue}:". Every key below is built from it, so all of them hash to one
-- slot of a Redis Cluster. keys.py is the Python twin of this table.
--
--   pending:<lane>:<tenant>  LIST    ids that wait; lane = suspect, high, normal or low
--   ring:<lane>              ZSET    tenants with waiting ids -> virtual time (fair share)
--   vtime                    HASH    lane -> virtual time of the last claim
--   weights                  HASH    tenant -> share of the engine, 1 unless an operator sets it
--   inbox                    LIST    plain JSON that anybody may RPUSH
--   inbox:<worker>           HASH    token -> element that this worker took and has not admitted yet
--   request:<id>             STRING  header line, metadata line, body; exists <=> not terminal
--   attempts                 HASH    id -> "deliveries|uncounted|crashes", only for ids tried before
--   inflight:<worker>        HASH    id -> delivery; membership with the same number is the fence
--   owner                    HASH    id -> worker, for in-flight ids
--   workers                  ZSET    worker -> lease expiry in ms
--   worker:<worker>          HASH    what it serves; for people and routing
--   lastclaim:<worker>       STRING  "nonce|id,id,..." of its last claim
--   abort:<worker>           LIST    ids it must abort
--   delayed                  ZSET    id -> ms at which it may be claimed
--   deadlines                ZSET    id -> ms at which it expires, if it has a deadline
--   result:<id>              STRING  the terminal record, JSON, with a TTL
--   dead, deadinfo           ZSET, HASH   dead letters: id -> ms; id -> evidence line, then the record
--   batch:<id>               HASH    counters of a batch
--   batches_done             LIST    batches that completed, each once
--   reply:<client>           LIST    ids that finished, newest 10,000
--   doorbell                 LIST    at most 4 tokens that wake idle workers
--   clock                    HASH    last_beat_ms, grace_until_ms
--   stats                    HASH    queued, in_flight, bytes (now); the other fields only grow
--   tenant_load              HASH    "tenant|requests", "tenant|bytes" of what is not terminal; no field is 0
--
-- Header of request:<id>, version 1, fields separated by "|":
--   1|enqueued_ms|deadline_ms|tenant|priority|digest|batch|prompt_tokens|max_tokens|max_attempts|reply|endpoint|model|prefix|origin

local prefix = KEYS[1]
local call = redis.call

local MAX_DOORBELL_TOKENS = 4
local MAX_REPLY_IDS = 10000
local MAX_BATCHES_DONE = 10000
local MAX_DEAD_LETTERS = 100000
local DAY_MS = 24 * 3600 * 1000

local function now_ms()
  local time = call("TIME")
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function integer(number) -- Lua prints large floats as 1e+15
  return string.format("%.0f", number)
end

-- Counters, batches and replies are gathered while a script runs and written once by flush().
local counts, batch_counts, replies, loads = {}, {}, {}, {}

local function count(field, amount)
  counts[field] = (counts[field] or 0) + amount
end

-- Count a record that has come (1) or gone (-1), for the queue and for its tenant.
local function weigh(tenant, sign, record)
  count("bytes", sign * #record)
  local load = loads[tenant]
  if not load then
    load = { requests = 0, bytes = 0 }
    loads[tenant] = load
  end
  load.requests = load.requests + sign
  load.bytes = load.bytes + sign * #record
end

local IS_PRIORITY = { high = true, normal = true, low = true }
local TEXT = "|([^|\n]*)"
local HEADER = "^1|(%d+)|(%d+)" .. TEXT .. TEXT .. TEXT .. TEXT .. "|(%d+)|(%d+)|(%d+)" .. TEXT .. TEXT
  .. "|[^|\n]*|[^|\n]*|[^|\n]*\n([^\n]*)\n"

-- Read a record. What cannot be read (another version, an alien's hand) gets a header with which it
-- can still be ended, so that no script stops half-way: claim makes it a dead letter. Invariant 6.
local function header_of(record)
  local header = { is_readable = true }
  header.enqueued_ms, header.deadline_ms, header.tenant, header.priority, header.digest, header.batch,
    header.prompt_tokens, header.max_tokens, header.max_attempts, header.reply, header.endpoint, header.metadata =
    string.match(record, HEADER)
  if not IS_PRIORITY[header.priority or ""] then
    return { is_readable = false, enqueued_ms = "0", deadline_ms = 0, tenant = "default", priority = "normal",
      digest = "", batch = "", cost = 1, max_attempts = 1, reply = "", endpoint = "", metadata = "" }
  end
  header.deadline_ms = tonumber(header.deadline_ms)
  -- At least 1, or a tenant whose requests cost nothing would always be the next; at most 2^24, or one
  -- request would lift virtual time to where a double no longer sees the others' costs.
  header.cost = math.min(math.max(1, tonumber(header.prompt_tokens) + tonumber(header.max_tokens)), 2 ^ 24)
  header.max_attempts = tonumber(header.max_attempts)
  return header
end

local function parse_attempts(text)
  if not text then
    return 0, 0, 0
  end
  local deliveries, uncounted, crashes = string.match(text, "^(%d+)|(%d+)|(%d+)$")
  return tonumber(deliveries), tonumber(uncounted), tonumber(crashes)
end

local function attempts_of(id)
  return parse_attempts(call("HGET", prefix .. "attempts", id))
end

local function set_attempts(id, deliveries, uncounted, crashes)
  call("HSET", prefix .. "attempts", id, deliveries .. "|" .. uncounted .. "|" .. crashes)
end

local function ring_doorbell()
  if call("LLEN", prefix .. "doorbell") < MAX_DOORBELL_TOKENS then
    call("LPUSH", prefix .. "doorbell", "1")
  end
end

-- Put an id into its lane. A suspect stays a suspect, whatever brought it back.
local function enqueue(id, tenant, priority, crashes, at_front)
  local lane = crashes > 0 and "suspect" or priority
  local push = at_front and "LPUSH" or "RPUSH"
  if call(push, prefix .. "pending:" .. lane .. ":" .. tenant, id) == 1 then
    local vtime = call("HGET", prefix .. "vtime", lane) or "0"
    call("ZADD", prefix .. "ring:" .. lane, "NX", vtime, tenant)
  end
end

-- Take an id from whoever holds it; returns the worker, or false.
local function disown(id)
  local worker = call("HGET", prefix .. "owner", id)
  if worker then
    call("HDEL", prefix .. "owner", id)
    if call("HDEL", prefix .. "inflight:" .. worker, id) == 1 then
      count("in_flight", -1)
    end
  end
  return worker
end

-- Write the terminal record; the only place that does. `outcome` is the inside of a JSON object.
-- Invariants 1 and 2: the request goes in the same step, and the first record wins.
local function finish(id, record, header, status, outcome, ttl_ms, time_ms)
  local result = '{"id":"' .. id .. '","status":"' .. status .. '","endpoint":"' .. header.endpoint
    .. '","digest":"' .. header.digest .. '","enqueued_ms":' .. header.enqueued_ms .. ',"finished_ms":'
    .. integer(time_ms) .. ',"metadata":' .. (header.metadata == "" and "null" or header.metadata) .. "," .. outcome .. "}"
  if not call("SET", prefix .. "result:" .. id, result, "NX", "PX", ttl_ms) then
    return false
  end
  call("UNLINK", prefix .. "request:" .. id)
  call("HDEL", prefix .. "attempts", id)
  if header.deadline_ms > 0 then
    call("ZREM", prefix .. "deadlines", id)
  end
  count(status, 1)
  weigh(header.tenant, -1, record)
  if header.batch ~= "" then
    local of_batch = batch_counts[header.batch] or {}
    of_batch[status] = (of_batch[status] or 0) + 1
    batch_counts[header.batch] = of_batch
  end
  if header.reply ~= "" then
    local ids = replies[header.reply] or {}
    ids[#ids + 1] = id
    replies[header.reply] = ids
  end
  return true
end

local function outcome_without_response(attempt, code, message)
  return '"attempt":' .. attempt .. ',"response":null,"error":{"code":"' .. code .. '","message":"' .. message .. '"}'
end

-- The attempt that runs, or else the last one; 0 if it never ran.
local function attempt_of(id)
  local deliveries, uncounted = attempts_of(id)
  local worker = call("HGET", prefix .. "owner", id)
  if worker then
    deliveries = tonumber(call("HGET", prefix .. "inflight:" .. worker, id)) or deliveries
  end
  return deliveries - uncounted
end

-- End a request as cancelled or expired, wherever it is: a worker that holds it is told to abort it.
-- Returns "running", "queued", or false if it was terminal already.
local function finish_anywhere(id, status, message, ttl_ms, time_ms)
  local record = call("GET", prefix .. "request:" .. id)
  local outcome = outcome_without_response(attempt_of(id), status, message)
  if not record or not finish(id, record, header_of(record), status, outcome, ttl_ms, time_ms) then
    return false
  end
  local worker = disown(id)
  if worker then
    call("RPUSH", prefix .. "abort:" .. worker, id)
    return "running"
  end
  call("ZREM", prefix .. "delayed", id)
  count("queued", -1)
  return "queued"
end

-- Keep what could not be served, with its bytes. Invariants 6 and 7.
local function dead_letter(id, reason, evidence, attempt, crashes, record, time_ms)
  local line = '{"id":"' .. id .. '","reason":"' .. reason .. '","at_ms":' .. integer(time_ms) .. ',"attempt":'
    .. attempt .. ',"crashes":' .. crashes .. ',"evidence":' .. (evidence == "" and "null" or evidence) .. "}"
  call("ZADD", prefix .. "dead", time_ms, id)
  call("HSET", prefix .. "deadinfo", id, line .. "\n" .. record)
  count("dead_lettered", 1)
  if call("ZCARD", prefix .. "dead") > MAX_DEAD_LETTERS then
    local oldest = call("ZPOPMIN", prefix .. "dead")
    call("HDEL", prefix .. "deadinfo", oldest[1])
  end
end

-- Give back what a dead engine or worker held. At most `limit` ids; returns how many it moved, and the
-- ids that it dead-lettered.
-- Suspects go first and never leave one alone behind, so that no verdict rests on a part of what was
-- in flight.
local function give_up(worker, limit, evidence, ttl_ms, time_ms)
  local held = call("HGETALL", prefix .. "inflight:" .. worker)
  local suspects, others, killed = {}, {}, {}
  for i = 1, #held, 2 do
    local _, uncounted, crashes = attempts_of(held[i])
    local into = crashes > 0 and suspects or others
    into[#into + 1] = { held[i], tonumber(held[i + 1]), uncounted, crashes }
  end
  local num_suspects = #suspects
  for i = 1, #others do
    suspects[#suspects + 1] = others[i]
  end
  local moved = math.min(#held / 2, limit)
  if num_suspects - moved == 1 and num_suspects > 1 then
    moved = moved - 1
  end
  for i = moved, 1, -1 do
    local id, deliveries, uncounted, crashes = unpack(suspects[i])
    disown(id)
    local record = call("GET", prefix .. "request:" .. id)
    if record then
      local header = header_of(record)
      crashes = crashes + 1
      if num_suspects == 1 and crashes > 1 then
        local outcome = outcome_without_response(deliveries - uncounted, "engine_killed",
          "the engine died " .. crashes .. " times while this request ran, the last time as its only suspect")
        if finish(id, record, header, "failed", outcome, ttl_ms, time_ms) then
          dead_letter(id, "engine_killed", evidence, deliveries - uncounted, crashes, record, time_ms)
          killed[#killed + 1] = id
        end
      else
        set_attempts(id, deliveries, uncounted + 1, crashes)
        enqueue(id, header.tenant, header.priority, crashes, true)
        count("queued", 1)
        count("crashed", 1)
      end
    end
  end
  return moved, killed
end

-- A pause of all beats longer than a lease means that Redis, not the workers, was away: give every
-- worker one lease to come back before any is reaped.
local function note_beat(lease_ms, time_ms)
  local last = tonumber(call("HGET", prefix .. "clock", "last_beat_ms") or time_ms)
  if time_ms - last > lease_ms * 0.8 then
    call("HSET", prefix .. "clock", "grace_until_ms", integer(time_ms + lease_ms))
  end
  call("HSET", prefix .. "clock", "last_beat_ms", integer(time_ms))
end

-- Complete a batch exactly once: when it is sealed and every member is terminal.
local function complete_batch(batch, time_ms)
  local batch_key = prefix .. "batch:" .. batch
  local fields = call("HMGET", batch_key, "total", "succeeded", "failed", "cancelled", "expired")
  local done = 0
  for i = 2, 5 do
    done = done + (tonumber(fields[i]) or 0)
  end
  if fields[1] and done >= tonumber(fields[1]) and call("HSETNX", batch_key, "completed_ms", integer(time_ms)) == 1 then
    call("RPUSH", prefix .. "batches_done", batch)
    call("LTRIM", prefix .. "batches_done", -MAX_BATCHES_DONE, -1)
  end
  return done
end

-- Write what was gathered. Every verb that changes anything ends with it.
local function flush(ttl_ms, time_ms)
  for field, amount in pairs(counts) do
    if amount ~= 0 then
      call("HINCRBY", prefix .. "stats", field, integer(amount))
    end
  end
  for tenant, load in pairs(loads) do
    for what, amount in pairs(load) do
      local field = tenant .. "|" .. what
      -- Below 0: accepted by a version that did not count.
      if amount ~= 0 and call("HINCRBY", prefix .. "tenant_load", field, integer(amount)) <= 0 then
        call("HDEL", prefix .. "tenant_load", field)
      end
    end
  end
  for batch, of_batch in pairs(batch_counts) do
    for status, amount in pairs(of_batch) do
      call("HINCRBY", prefix .. "batch:" .. batch, status, amount)
    end
    call("PEXPIRE", prefix .. "batch:" .. batch, 7 * DAY_MS)
    complete_batch(batch, time_ms)
  end
  for client, ids in pairs(replies) do
    local reply_key = prefix .. "reply:" .. client
    for from = 1, #ids, 1000 do
      call("RPUSH", reply_key, unpack(ids, from, math.min(from + 999, #ids)))
    end
    call("LTRIM", reply_key, -MAX_REPLY_IDS, -1)
    call("PEXPIRE", reply_key, ttl_ms)
  end
end

-- Accept one new request. Returns "accepted", "queued" (already there), "done" (already terminal)
-- or "conflict" (the id belongs to another body or endpoint). `is_new` says that the id has no result.
local function accept(is_new, id, tenant, priority, deadline_in_ms, delay_ms, digest, tail, payload, time_ms)
  local result = not is_new and call("GET", prefix .. "result:" .. id)
  if result then
    return string.find(result, '"digest":"' .. digest .. '"', 1, true) and "done" or "conflict"
  end
  local deadline_ms = deadline_in_ms > 0 and time_ms + deadline_in_ms or 0
  local record = "1|" .. integer(time_ms) .. "|" .. integer(deadline_ms) .. "|" .. tenant .. "|" .. priority .. "|"
    .. digest .. "|" .. tail .. "\n" .. payload
  if not call("SET", prefix .. "request:" .. id, record, "NX") then
    local present = header_of(call("GET", prefix .. "request:" .. id))
    return present.digest == digest and "queued" or "conflict"
  end
  count("submitted", 1)
  count("queued", 1)
  weigh(tenant, 1, record)
  if deadline_ms > 0 then
    call("ZADD", prefix .. "deadlines", deadline_ms, id)
  end
  if delay_ms > 0 then
    call("ZADD", prefix .. "delayed", time_ms + delay_ms, id)
  else
    enqueue(id, tenant, priority, 0, false)
  end
  return "accepted"
end
