-- The schema of one queue and the transitions that several verbs share. Every verb's script is this
-- text followed by <verb>.lua; a script runs whole or not at all, so each transition is atomic.
--
-- KEYS[1] is the prefix "gm:{queue}:". Every key below is built from it, so all of them hash to one
-- slot of a Redis Cluster. keys.py is the Python twin of this table.
--
--   policy                   HASH    scheduling, ageing_ms: in which order claims take what waits; is_mixed: some of it
--                                    may lie where another policy has put it
--   pending:<lane>:<flow>    LIST    ids that wait, first come first served; lane = suspect, high, normal or
--                                    low; flow = a tenant, or * for all where tenants do not count
--   sjf:<lane>:<flow>        ZSET    ids that wait -> position, where they are ordered by size;
--   deadline:<lane>:<flow>   ZSET    by deadline;
--   prefix:<lane>:<flow>     ZSET    by what they begin with
--   ring:<lane>              ZSET    flows with waiting ids -> virtual time (fair share)
--   debt:<lane>              ZSET    flows without waiting ids that were served ahead -> virtual time
--   vtime                    HASH    lane -> virtual time of the last claim
--   weights                  HASH    tenant -> share of the engine, 1 unless an operator sets it
--   output_share             HASH    tenant -> generated share of max_tokens, as seen lately
--   groups                   HASH    "lane|flow|prefix" -> "position|size" of the group that is filling; last -> position
--   inbox                    LIST    plain JSON that anybody may RPUSH
--   inbox:<worker>           HASH    token -> element that this worker took and has not admitted yet
--   request:<id>             STRING  header line, metadata line, body; exists <=> not terminal
--   attempts                 HASH    id -> "deliveries|uncounted|crashes", only for ids tried before
--   inflight:<worker>        HASH    id -> delivery; membership with the same number is the fence
--   owner                    HASH    id -> "worker" or "worker|cost|lane|tenant", for in-flight ids; the cost is what the
--                                    claim charged to the tenant
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
--   clock                    HASH    last_beat_ms, grace_until_ms; served_normal, served_low: ms at which a claim
--                                    last took from the lane, or its backlog began
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
local MAX_FIELDS = 1000 -- of a hash in one call: Lua unpacks no more than some 8,000 values
local DAY_MS = 24 * 3600 * 1000

local AGEING_MS = 10000 -- of a queue whose policy says nothing
-- Waiting credit of the shortest first: a request of 16,000 tokens passes new ones of 400 after a quarter of an hour.
local CREDIT_TOKENS_PER_MS = 16 / 1000
-- A group of one prefix takes newcomers in, ahead of what came between, until it is that large or that old.
local MAX_GROUP, MAX_GROUP_MS, MAX_GROUPS = 256, 60000, 10000
local MIN_WEIGHT, MAX_WEIGHT = 1 / 1000, 1000
-- Tenants whose debt or output share is remembered; and what a flow that comes starts behind those that wait, in
-- tokens, so that of flows that start alike the first comes first.
local MAX_TENANTS, STEP_BEHIND = 10000, 0.001
-- How fast the output share of a tenant follows what is seen: half of it after some 45 requests.
local SHARE_STEP = 1 / 64

local function now_ms()
  local time = call("TIME")
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function integer(number) -- Lua prints large floats as 1e+15; as an argument of a call Redis prints all digits
  return string.format("%.0f", number)
end

-- Counters, batches and replies are gathered while a script runs and written once by flush().
local counts, batch_counts, replies, loads, refunds = {}, {}, {}, {}, {}

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
local PREFIX = "^[^\n]*|([^|\n]*)|[^|\n]*\n"

-- At least 1, or a tenant whose requests cost nothing would always be the next; at most 2^24, or one
-- request would lift virtual time to where a double no longer sees the others' costs.
local function bounded_cost(tokens)
  return math.min(math.max(1, tokens), 2 ^ 24)
end

-- Read a record. What cannot be read (another version, an alien's hand) gets a header with which it
-- can still be ended, so that no script stops half-way: claim makes it a dead letter. Invariant 6.
local function header_of(record)
  local enqueued_ms, deadline_ms, tenant, priority, digest, batch, prompt_tokens, max_tokens, max_attempts, reply,
    endpoint, metadata = string.match(record, HEADER)
  if not IS_PRIORITY[priority or ""] then
    return { is_readable = false, enqueued_ms = "0", deadline_ms = 0, tenant = "default", priority = "normal",
      digest = "", batch = "", prompt_tokens = 1, max_tokens = 0, cost = 1, max_attempts = 1, reply = "",
      endpoint = "", metadata = "", record = "\n" }
  end
  return { is_readable = true, enqueued_ms = enqueued_ms, deadline_ms = tonumber(deadline_ms), tenant = tenant,
    priority = priority, digest = digest, batch = batch, prompt_tokens = tonumber(prompt_tokens),
    max_tokens = tonumber(max_tokens), cost = bounded_cost(prompt_tokens + max_tokens),
    max_attempts = tonumber(max_attempts), reply = reply, endpoint = endpoint, metadata = metadata, record = record }
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

-- The policy of the queue, read once a script: fcfs, priority, sjf, deadline, prefix, fair, or fair with one of
-- sjf, deadline and prefix for the order inside a tenant's share.
local the_policy
local function policy()
  if not the_policy then
    local fields = call("HMGET", prefix .. "policy", "scheduling", "ageing_ms", "is_mixed")
    local name = fields[1] or "fair"
    local order = string.match(name, "[^+]+$")
    the_policy = { name = name, is_mixed = fields[3], has_lanes = name ~= "fcfs", is_fair = string.sub(name, 1, 4) == "fair",
      order = (order == "sjf" or order == "deadline" or order == "prefix") and order,
      ageing_ms = tonumber(fields[2] or nil) or AGEING_MS }
  end
  return the_policy
end

-- Of each tenant: its weight, and the share of max_tokens that its requests were seen to generate, 1 until one was.
local weights, shares = {}, {}

local function know_tenants(flows)
  local names = {}
  for _, flow in ipairs(flows) do
    if not shares[flow.name] then
      names[#names + 1] = flow.name
    end
  end
  if #names > 0 then
    local seen_weights = call("HMGET", prefix .. "weights", unpack(names))
    local seen_shares = call("HMGET", prefix .. "output_share", unpack(names))
    for i, name in ipairs(names) do
      local weight = tonumber(seen_weights[i] or 1)
      -- One that makes no sense is 1; beyond the bounds virtual time would no longer see the others' costs.
      weights[name] = weight and weight > 0 and math.max(MIN_WEIGHT, math.min(weight, MAX_WEIGHT)) or 1
      shares[name] = tonumber(seen_shares[i] or 1)
    end
  end
end

local function weight_of(tenant)
  if not weights[tenant] then
    know_tenants({ { name = tenant } })
  end
  return weights[tenant]
end

local function output_share(tenant)
  if not shares[tenant] then
    know_tenants({ { name = tenant } })
  end
  return shares[tenant]
end

-- Tokens that a request will take, by what was seen of its tenant.
local function expected_cost(header)
  return bounded_cost(math.floor(header.prompt_tokens + header.max_tokens * output_share(header.tenant)))
end

-- Where a request waits: lane, flow, and whether it is ordered there. Suspects wait in a lane of their own.
local function place_of(header, crashes)
  if crashes > 0 then
    return "suspect", header.tenant, false
  end
  local now = policy()
  return now.has_lanes and header.priority or "normal", now.is_fair and header.tenant or "*", now.order
end

local KINDS = { "pending", "sjf", "deadline", "prefix" } -- the first is a LIST

local function place_key(lane, flow, order)
  return prefix .. (order or "pending") .. ":" .. lane .. ":" .. flow
end

local function place_keys(lane, flow)
  local keys = {}
  for i, kind in ipairs(KINDS) do
    keys[i] = place_key(lane, flow, kind)
  end
  return keys
end

-- Requests of one prefix stand together, where the first of their group came.
local function group_position(header, lane, flow)
  local group_prefix = string.match(header.record, PREFIX) or ""
  if group_prefix == "" then
    return tonumber(header.enqueued_ms)
  end
  local groups_key, group = prefix .. "groups", lane .. "|" .. flow .. "|" .. group_prefix
  local start, size = string.match(call("HGET", groups_key, group) or "", "^(%d+)|(%d+)$")
  if not start or tonumber(size) >= MAX_GROUP or header.enqueued_ms - start > MAX_GROUP_MS then
    -- No two groups begin in one ms, or they would mix.
    start, size = math.max(header.enqueued_ms, tonumber(call("HGET", groups_key, "last") or 0) + 1), 0
    if call("HLEN", groups_key) >= MAX_GROUPS then
      call("DEL", groups_key) -- groups begin anew; no request is lost by that
    end
    call("HSET", groups_key, "last", integer(start))
  end
  call("HSET", groups_key, group, integer(start) .. "|" .. integer(size + 1))
  call("PEXPIRE", groups_key, MAX_GROUP_MS * 2)
  return start + size / 4096 -- a double has that much room beside a time in ms
end

-- A position never changes while a request waits, and time is a part of each, so nothing starves.
local function position_of(header, lane, flow, order)
  if order == "sjf" then
    return header.enqueued_ms * CREDIT_TOKENS_PER_MS + expected_cost(header)
  elseif order == "deadline" then
    local in_a_day = header.enqueued_ms + DAY_MS -- a far deadline is no worse than none
    return header.deadline_ms > 0 and math.min(header.deadline_ms, in_a_day) or in_a_day
  end
  return group_position(header, lane, flow)
end

-- Put an id where it waits. A suspect stays a suspect, whatever brought it back.
local function enqueue(id, header, crashes, at_front)
  local lane, flow, order = place_of(header, crashes)
  local key, num_new = place_key(lane, flow, order), 0
  if order then
    num_new = call("ZADD", key, position_of(header, lane, flow, order), id)
  else
    num_new = call(at_front and "LPUSH" or "RPUSH", key, id)
  end
  if num_new == 1 then -- the first of its flow; among ordered ids it may be another, and then the flow is in the ring
    local ring_key = prefix .. "ring:" .. lane
    if call("ZSCORE", ring_key, flow) then
      return
    end
    if (lane == "normal" or lane == "low") and call("EXISTS", ring_key) == 0 then
      call("HSET", prefix .. "clock", "served_" .. lane, integer(now_ms()))
    end
    local vtime = tonumber(call("HGET", prefix .. "vtime", lane) or 0) + STEP_BEHIND
    call("HSET", prefix .. "vtime", lane, vtime)
    local debt = tonumber(call("ZSCORE", prefix .. "debt:" .. lane, flow) or 0)
    call("ZADD", ring_key, math.max(vtime, debt), flow)
  end
end

-- A request that was charged to its tenant took `tokens` in the end: make the difference good, where the tenant
-- waits or where its debt is remembered. `owner` is what the hash of this name says.
local function settle_charge(owner, tokens)
  local cost, place = string.match(owner, "|(%d+)|(.*)$")
  if cost then
    refunds[place] = (refunds[place] or 0) + tokens - cost
  end
end

-- Who holds an id, or false; and all that its owner says.
local function holder_of(id)
  local owner = call("HGET", prefix .. "owner", id)
  return owner and string.match(owner, "^[^|]*"), owner
end

-- Take an id from whoever holds it; returns the worker, or false.
local function disown(id)
  local worker, owner = holder_of(id)
  if worker then
    call("HDEL", prefix .. "owner", id)
    settle_charge(owner, 0)
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
  local worker = holder_of(id)
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
  for start = 1, #held, 2 * MAX_FIELDS do
    local ids = {}
    for i = start, math.min(start + 2 * MAX_FIELDS, #held) - 1, 2 do
      ids[#ids + 1] = held[i]
    end
    for j, attempts in ipairs(call("HMGET", prefix .. "attempts", unpack(ids))) do
      local _, uncounted, crashes = parse_attempts(attempts)
      local into = crashes > 0 and suspects or others
      into[#into + 1] = { ids[j], tonumber(held[start + 2 * j - 1]), uncounted, crashes }
    end
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
        enqueue(id, header, crashes, true)
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
  local total = tonumber(fields[1] or nil)
  if total and done >= total and call("HSETNX", batch_key, "completed_ms", integer(time_ms)) == 1 then
    call("RPUSH", prefix .. "batches_done", batch)
    call("LTRIM", prefix .. "batches_done", -MAX_BATCHES_DONE, -1)
  end
  return done
end

-- Correct what a tenant has paid; down to virtual time at most, or what it paid before all started level would
-- come back as credit.
local function settle_with(place, tokens)
  local lane, tenant = string.match(place, "^(%a+)|(.*)$")
  local amount, vtime = tokens / weight_of(tenant), tonumber(call("HGET", prefix .. "vtime", lane) or 0)
  for _, key in ipairs({ prefix .. "ring:" .. lane, prefix .. "debt:" .. lane }) do
    local paid = tonumber(call("ZSCORE", key, tenant) or nil)
    if paid then
      call("ZADD", key, math.max(paid + amount, math.min(paid, vtime)), tenant)
      return
    end
  end
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
  for place, tokens in pairs(refunds) do
    settle_with(place, tokens)
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
    enqueue(id, policy().order and header_of(record) or { tenant = tenant, priority = priority }, 0, false)
  end
  return "accepted"
end
