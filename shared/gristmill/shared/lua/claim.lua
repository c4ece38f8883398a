-- claim: lease waiting requests to a worker, and hand it what lies in the inbox.
--
-- KEYS[1]  prefix
-- ARGV     worker, nonce, max_requests, max_tokens (estimated, for the whole claim), max_suspects,
--          has_suspects (1 if the worker already runs one), max_depth, max_bytes, result_ttl_ms, ms_per_token
--          (of one request on this worker's engine, 0 if unknown; tells which deadlines cannot be met)
-- Returns  {"LOST"} if the worker holds no lease; else
--          {"OK", now_ms, next_due_ms (-1: none), {token, element, ...} from the inbox,
--           {id, delivery, attempt, crashes, record, ...}, num_queued, num_workers}
--          Sent twice with one nonce, the second returns the same requests.
-- Keeps    3 (the fence is written here), 4 (expired requests end here too), 7 (bounded work),
--          8 (nothing is popped that is not held)

local MAX_PROMOTED, MAX_EXAMINED, MAX_MOVED, MAX_INBOX = 200, 256, 128, 16
-- Ids that are popped together; of one flow, before it is known what these cost; and of a lane that has waited.
local CHUNK, FLOW_CHUNK, TURN = 32, 16, 8
local worker, nonce = ARGV[1], ARGV[2]
local max_requests, max_tokens, max_suspects = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local has_suspects, result_ttl_ms, ms_per_token = ARGV[6] == "1", ARGV[9], tonumber(ARGV[10])
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

local function num_queued()
  return tonumber(call("HGET", prefix .. "stats", "queued") or 0)
end

local function reply()
  return { "OK", time_ms, next_due_ms(), call("HGETALL", prefix .. "inbox:" .. worker), claimed, num_queued(),
    call("ZCARD", prefix .. "workers") }
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
  return reply()
end

-- Due retries and start times return to their lanes.
for _, id in ipairs(call("ZRANGE", prefix .. "delayed", 0, time_ms, "BYSCORE", "LIMIT", 0, MAX_PROMOTED)) do
  call("ZREM", prefix .. "delayed", id)
  local record = call("GET", prefix .. "request:" .. id)
  if record then
    local header = header_of(record)
    local _, _, crashes = attempts_of(id)
    enqueue(id, header, crashes, false)
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

-- Most queues have neither retries nor start times under way, and need not look for them.
local has_attempts, has_delayed = call("EXISTS", attempts_key) == 1, call("EXISTS", prefix .. "delayed") == 1
local spent, examined, is_spent, num_suspects, num_moved, is_taken, vtimes = 0, 0, false, 0, 0, {}, {}

local function bury(id, record, header, attempt, crashes)
  local outcome = outcome_without_response(attempt, "unreadable", "the stored record cannot be read; a dead letter has its bytes")
  if finish(id, record, header, "failed", outcome, result_ttl_ms, time_ms) then
    dead_letter(id, "unreadable", "", attempt, crashes, record, time_ms)
    count("queued", -1)
  end
end

local function expire(id, record, header, attempt, message)
  local outcome = outcome_without_response(attempt, "expired", message)
  if finish(id, record, header, "expired", outcome, result_ttl_ms, time_ms) then
    count("queued", -1)
  end
end

-- A deadline that the engine cannot meet, by the tokens that such requests take and the time of each, ends the
-- request now: it is told early, and what it would have taken goes to those that can be met.
local function is_infeasible(header)
  return policy().order == "deadline" and header.deadline_ms > 0
    and time_ms + header.max_tokens * ms_per_token > header.deadline_ms -- the tenant is looked up where it matters
    and time_ms + header.max_tokens * output_share(header.tenant) * ms_per_token > header.deadline_ms
end

-- Take one popped id. Returns what it is expected to cost, in tokens; or nil if it must go back to the front.
local function take(entry, record, is_elsewhere, attempts)
  local id = entry.id
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
    expire(id, record, header, deliveries - uncounted, "the deadline passed while the request waited")
    return 0
  end
  local lane, flow, order = place_of(header, crashes)
  if lane ~= entry.lane or flow ~= entry.flow.name or order ~= entry.order then
    enqueue(id, header, crashes, false) -- the policy has changed, or the id was submitted again
    num_moved = num_moved + 1
    return 0
  end
  if is_infeasible(header) then
    expire(id, record, header, deliveries - uncounted, "the deadline cannot be met: about "
      .. integer(header.max_tokens * output_share(header.tenant)) .. " tokens at " .. string.format("%.3g", ms_per_token) .. " ms each take longer")
    return 0
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
  ids[#ids + 1], is_taken[id] = id, true
  held[#held + 1], held[#held + 2] = id, delivery
  if attempts then
    set_attempts(id, delivery, uncounted, crashes)
  end
  if lane == "suspect" then
    num_suspects = num_suspects + 1
    max_suspects = runs_alone and 0 or max_suspects - 1
  end
  spent = spent + header.cost
  local cost, owner = 1, worker
  if flow ~= "*" then
    cost = expected_cost(header)
    owner = worker .. "|" .. cost .. "|" .. lane .. "|" .. flow
  end
  owners[#owners + 1], owners[#owners + 2] = id, owner
  return cost
end

local function pop_listed(lane, flow, number, entries)
  for _, id in ipairs(number > 0 and call("LPOP", place_key(lane, flow.name), number) or {}) do
    entries[#entries + 1] = { id = id, lane = lane, flow = flow, order = false }
  end
end

local function pop_ordered(lane, flow, order, number, entries)
  local popped = call("ZPOPMIN", place_key(lane, flow.name, order), number)
  for i = 1, #popped, 2 do
    entries[#entries + 1] = { id = popped[i], lane = lane, flow = flow, order = order, position = popped[i + 1] }
  end
end

-- Pop ids of one flow: those in order first; then, after a change of policy, those that are listed.
local function pop_flow(lane, flow, room, entries)
  local order, is_mixed = lane ~= "suspect" and policy().order, policy().is_mixed
  local most = #entries + math.min(room, flow.name == "*" and CHUNK or FLOW_CHUNK)
  if order then
    pop_ordered(lane, flow, order, most - #entries, entries)
  end
  if is_mixed or not order then
    pop_listed(lane, flow, most - #entries, entries)
  end
  if is_mixed then
    flow.has_more = call("EXISTS", unpack(place_keys(lane, flow.name))) > 0
  else -- fewer than asked for: nothing is left
    flow.has_more = #entries == most and call("EXISTS", place_key(lane, flow.name, order)) > 0
  end
end

-- Flows of a lane and their virtual times, from one place in the ring to another. What the policy puts elsewhere is left to
-- move_misplaced: popped here, a backlog under another policy would hide what may be taken.
local function flows_of(lane, from, to)
  local ring_key = prefix .. "ring:" .. lane
  if lane == "suspect" or policy().is_fair then
    return call("ZRANGE", ring_key, from, to, "WITHSCORES")
  end
  local vtime = from == 0 and call("ZSCORE", ring_key, "*")
  return vtime and { "*", vtime } or {}
end

-- Pop ids of a lane: of the flow that is next by virtual time, and as long as that empties it, of those after it.
-- (A flow that has more may not be next again until it is known what this cost.) Returns entries and their flows.
local function pop(lane, size)
  local ring_key, entries, flows, emptied = prefix .. "ring:" .. lane, {}, {}, {}
  local room = lane == "suspect" and 1 or math.min(size, max_requests - #ids)
  local from, has_next = 0, true
  while has_next do
    local found = flows_of(lane, from, from == 0 and 0 or room)
    for i = 1, #found, 2 do
      if found[i] ~= "*" or not policy().is_fair then
        local flow = { name = found[i], vtime = tonumber(found[i + 1]), cost = 0, has_more = false }
        flows[#flows + 1] = flow
        pop_flow(lane, flow, room - #entries, entries)
        if not flow.has_more then
          emptied[#emptied + 1] = flow.name
        end
        has_next = not flow.has_more and #entries < room
      end
      if not has_next then
        break
      end
    end
    has_next, from = has_next and #found > 0 and from == 0, 1
  end
  if #emptied > 0 then
    call("ZREM", ring_key, unpack(emptied))
  end
  examined = examined + #entries
  return entries, flows, #entries + #emptied > 0
end

local function put_back(entry)
  entry.flow.has_more = true
  examined = examined - 1
  if entry.position then
    call("ZADD", place_key(entry.lane, entry.flow.name, entry.order), entry.position, entry.id)
  else
    call("LPUSH", place_key(entry.lane, entry.flow.name), entry.id)
  end
end

-- Charge each flow what was taken from it (start-time fair queueing, Goyal, Vin and Cheng 1996). A flow that is
-- empty now remembers its debt until virtual time has passed it, or who submits little at a time would never pay.
local function charge(lane, flows)
  local waiting, debts, reached = {}, {}, flows[1].vtime
  for _, flow in ipairs(flows) do
    reached = flow.cost > 0 and flow.vtime or reached -- not that of flows whose requests were put back
  end
  vtimes[lane] = math.max(reached, vtimes[lane] or tonumber(call("HGET", prefix .. "vtime", lane) or 0))
  for _, flow in ipairs(flows) do
    local finish = flow.vtime
    if flow.cost > 0 and flow.name ~= "*" then
      finish = finish + flow.cost / weight_of(flow.name)
    end
    local into = flow.has_more and waiting or debts
    if flow.has_more or finish > vtimes[lane] then
      into[#into + 1], into[#into + 2] = finish, flow.name
    end
  end
  if #waiting > 0 then
    call("ZADD", prefix .. "ring:" .. lane, unpack(waiting))
  end
  if #debts > 0 then
    call("ZADD", prefix .. "debt:" .. lane, unpack(debts))
  end
end

-- Take up to `size` requests of a lane; false if it has none that the policy would take.
local function take_chunk(lane, size)
  local entries, flows, is_progress = pop(lane, size)
  if not is_progress then
    return false
  end
  if #entries > 0 then
    know_tenants(flows)
    local names, request_keys = {}, {}
    for i, entry in ipairs(entries) do
      names[i], request_keys[i] = entry.id, prefix .. "request:" .. entry.id
    end
    local records = call("MGET", unpack(request_keys))
    local entry_owners = call("HMGET", owner_key, unpack(names))
    local entry_attempts = has_attempts and call("HMGET", attempts_key, unpack(names)) or {}
    local due = has_delayed and call("ZMSCORE", prefix .. "delayed", unpack(names)) or {}
    for i, entry in ipairs(entries) do
      local cost = take(entry, records[i], entry_owners[i] or due[i] or is_taken[entry.id], entry_attempts[i])
      if not cost then
        for j = #entries, i, -1 do
          put_back(entries[j])
        end
        break
      end
      entry.flow.cost = entry.flow.cost + cost
    end
  end
  charge(lane, flows)
  return true
end

local function wants_more(lane)
  return #ids < max_requests and not is_spent and examined < MAX_EXAMINED and (lane ~= "suspect" or max_suspects > 0)
end

-- Whether the policy puts anything there; the twin of place_of.
local function is_place(lane, flow, kind)
  return (flow == "*") ~= policy().is_fair and kind == (policy().order or "pending")
    and (lane == "normal" or policy().has_lanes)
end

local function move_from(key, kind, number)
  local popped = call(kind == "pending" and "LPOP" or "ZPOPMIN", key, number) or {}
  for i = 1, #popped, kind == "pending" and 1 or 2 do
    local record = call("GET", prefix .. "request:" .. popped[i])
    if record then
      local _, _, crashes = attempts_of(popped[i])
      enqueue(popped[i], header_of(record), crashes, false)
    end
    examined = examined + 1
  end
end

-- After a change of policy, put some of what waits where the new one looks for it; first what is next to be claimed.
local function move_misplaced()
  local is_whole = true
  for _, lane in ipairs({ "high", "normal", "low" }) do
    local ring_key = prefix .. "ring:" .. lane
    is_whole = is_whole and call("ZCARD", ring_key) <= MAX_MOVED
    for _, flow in ipairs(call("ZRANGE", ring_key, 0, MAX_MOVED - 1)) do
      for _, kind in ipairs(KINDS) do
        local room = MAX_MOVED - examined
        if room > 0 and not is_place(lane, flow, kind) then
          move_from(place_key(lane, flow, kind), kind, room)
        end
      end
      if call("EXISTS", unpack(place_keys(lane, flow))) == 0 then
        call("ZREM", ring_key, flow)
      end
    end
  end
  if is_whole and examined == 0 then
    call("HDEL", prefix .. "policy", "is_mixed")
  end
end

-- Take from a lane until enough is taken, or for one turn only.
local function take_from(lane, is_one_turn)
  local before = #ids
  while wants_more(lane) and take_chunk(lane, is_one_turn and TURN or CHUNK) and not is_one_turn do
  end
  if vtimes[lane] then
    call("HSET", prefix .. "vtime", lane, vtimes[lane])
    local debt_key = prefix .. "debt:" .. lane
    if call("EXISTS", prefix .. "ring:" .. lane) == 0 then
      call("DEL", debt_key) -- nobody waits: all start level again
    else
      call("ZREMRANGEBYSCORE", debt_key, "-inf", vtimes[lane])
      local too_many = call("ZCARD", debt_key) - MAX_TENANTS
      if too_many > 0 then
        call("ZPOPMIN", debt_key, too_many)
      end
    end
  end
  if #ids > before and lane ~= "suspect" and lane ~= "high" then
    call("HSET", prefix .. "clock", "served_" .. lane, integer(time_ms))
  end
end

-- Lanes in strict order, but a lane that waits for as long as the policy says gets a chunk ahead of the others.
if policy().is_mixed then
  move_misplaced()
end
take_from("suspect")
local ageing_ms = policy().ageing_ms
local served = call("HMGET", prefix .. "clock", "served_normal", "served_low")
for i, lane in ipairs({ "normal", "low" }) do
  if ageing_ms > 0 and served[i] and time_ms - served[i] >= ageing_ms then
    take_from(lane, true)
  end
end
repeat
  num_moved = 0
  for _, lane in ipairs({ "high", "normal", "low" }) do
    take_from(lane)
  end
until num_moved == 0 -- what moved may be in a lane before the one that it was found in

if #ids > 0 then
  count("queued", -#ids)
  count("in_flight", #ids)
  call("HSET", inflight_key, unpack(held))
  call("HSET", owner_key, unpack(owners))
  call("SET", prefix .. "lastclaim:" .. worker, nonce .. "|" .. table.concat(ids, ","))
end
flush(result_ttl_ms, time_ms)

-- Pass the bell on while work remains, but only after progress: a worker that may take nothing of what
-- remains (suspects, an inbox over the caps) must not wake itself for ever.
if num_queued() <= call("ZCARD", prefix .. "delayed") and call("LLEN", prefix .. "inbox") == 0 then
  call("DEL", prefix .. "doorbell")
elseif examined > 0 or has_taken_inbox then
  ring_doorbell()
end
return reply()
