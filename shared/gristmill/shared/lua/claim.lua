-- claim: lease waiting requests to a worker, and hand it what lies in the inbox.
--
-- KEYS[1]  prefix
-- ARGV     worker, nonce, max_requests, max_tokens (estimated, for the whole claim), max_suspects,
--          has_suspects (1 if the worker already runs one), max_depth, max_bytes, result_ttl_ms, ms_per_token
--          (of one request on this worker's engine, 0 if unknown; tells which deadlines cannot be met), understood
--          (names of facts, joined by commas), then the most requests from the lanes high, normal, low ("": no limit),
--          then the most bytes of records (one record always fits) and of an inbox element, then tenants to take from
--          only if no other has anything, joined by commas
-- Returns  {"LOST"} if the worker holds no lease; else
--          {"OK", now_ms, next_due_ms (-1: none), {token, element, ...} from the inbox,
--           {id, delivery, attempt, crashes, record, ...}, num_queued, num_workers}
--          Sent twice with one nonce, the second returns the same requests.
-- Keeps    3 (the fence is written here), 4 (expired requests end here too), 7 (bounded work),
--          8 (nothing is popped that is not held)

-- The state that the phases pass on.
local claim = {
  worker = ARGV[1], nonce = ARGV[2], time_ms = now_ms(), max_requests = tonumber(ARGV[3]), max_tokens = tonumber(ARGV[4]),
  max_suspects = tonumber(ARGV[5]), has_suspects = ARGV[6] == "1", max_depth = tonumber(ARGV[7]),
  max_bytes = tonumber(ARGV[8]), result_ttl_ms = ARGV[9], ms_per_token = tonumber(ARGV[10]),
  max_of_lane = { suspect = math.huge, high = tonumber(ARGV[12]) or math.huge, normal = tonumber(ARGV[13]) or math.huge,
    low = tonumber(ARGV[14]) or math.huge },
  max_record_bytes = tonumber(ARGV[15]) or 32 * 2 ^ 20, max_element_bytes = tonumber(ARGV[16]) or 64 * 2 ^ 20 + 65536,
  num_of_lane = { suspect = 0, high = 0, normal = 0, low = 0 }, -- taken so far
  max_ids = 0, -- most ids that the claim may have when it has taken from the present lane
  understands = {}, pauses = {}, has_pauses = false, -- name -> true; scope -> true
  avoided = {}, num_avoided = 0, -- tenant -> true, and how many
  ids = {}, is_taken = {}, -- taken so far: in order; id -> true
  deliveries = {}, owners = {}, -- id, value, ... for in_flight:<worker> and for owner
  reply = {}, -- id, delivery, attempt, crashes, record, ... for the worker
  num_examined = 0, -- ids popped and not put back; they bound the work of one claim
  num_moved = 0, -- ids found in a place that is not theirs
  num_suspects = 0, spent_tokens = 0, spent_bytes = 0,
  is_spent = false, -- the next request would exceed max_tokens or max_record_bytes
  virtual_times = {}, -- lane -> virtual time, if this claim has advanced it
}

local function num_queued()
  return tonumber(call("HGET", prefix .. "stats", "queued") or 0)
end

local function reply()
  -- A paused queue has nothing due: workers would ask again and again.
  local due = is_paused(claim, "queue") and {} or call("ZRANGE", prefix .. "delayed", 0, 0, "WITHSCORES")
  return { "OK", claim.time_ms, tonumber(due[2] or -1), claim.admitting,
    claim.reply, num_queued(), call("ZCARD", prefix .. "workers") }
end

-- If this nonce has claimed before, reply with the same requests; returns whether it has.
local function repeat_last_claim()
  local last = call("MGET", prefix .. "last_claim:" .. claim.worker)[1]
  if not last or string.sub(last, 1, #claim.nonce + 1) ~= claim.nonce .. "|" then
    return false
  end
  for id in string.gmatch(string.sub(last, #claim.nonce + 2), "[^,]+") do
    local delivery = call("HGET", prefix .. "in_flight:" .. claim.worker, id)
    local record = stored_record(id)
    if delivery and record then
      local _, uncounted, crashes = attempts_of(id)
      reply_with(claim, id, tonumber(delivery), uncounted, crashes, record)
    end
  end
  return true
end

-- Take from the lanes in strict order. A lane that has waited for as long as the scheduling says gets a turn before.
local function take_from_lanes()
  -- Most queues have neither retries nor start times, and need not look for them at each id.
  claim.has_attempts = call("EXISTS", prefix .. "attempts") == 1
  claim.has_delayed = call("EXISTS", prefix .. "delayed") == 1
  local now = call("HMGET", prefix .. "stats", "in_flight", "large")
  claim.is_start_of_work, claim.has_large = tonumber(now[1] or 0) == 0, tonumber(now[2] or 0) > 0
  if claim.has_large and claim.is_start_of_work and num_queued() == 0 then
    call("HDEL", prefix .. "stats", "large") -- scripts without this counter ended large requests
  end
  take_from(claim, "suspect")
  local ageing_ms, served = scheduling().ageing_ms, call("HMGET", prefix .. "times", "normal_served_ms", "low_served_ms")
  for i, lane in ipairs({ "normal", "low" }) do
    if ageing_ms > 0 and served[i] and claim.time_ms - served[i] >= ageing_ms then
      take_from(claim, lane, TURN)
    end
  end
  repeat
    claim.num_moved = 0
    for _, lane in ipairs({ "high", "normal", "low" }) do
      take_from(claim, lane)
    end
  until claim.num_moved == 0 -- a request may have moved to a lane before the one that it was found in
end

local function write_claim()
  if #claim.ids > 0 then
    if claim.is_start_of_work then -- the pace of a queue counts only time in which requests are in flight (ack.lua)
      call("HSET", prefix .. "pace", "since_ms", integer(claim.time_ms))
    end
    count("queued", -#claim.ids)
    count("queued_tokens", -claim.spent_tokens)
    count("in_flight", #claim.ids)
    count("in_flight_tokens", claim.spent_tokens)
    call("HSET", prefix .. "in_flight:" .. claim.worker, unpack(claim.deliveries))
    call("HSET", prefix .. "owner", unpack(claim.owners))
    call("SET", prefix .. "last_claim:" .. claim.worker, claim.nonce .. "|" .. table.concat(claim.ids, ","))
  end
  flush(claim.result_ttl_ms, claim.time_ms)
end

-- Wake the next worker while work remains, but only after progress. A worker that may take nothing of what remains
-- (suspects, an inbox over the caps) would wake itself again and again.
local function pass_doorbell_on(has_progress)
  if num_queued() <= call("ZCARD", prefix .. "delayed") and call("EXISTS", prefix .. "inbox", prefix .. "inbox_suspects") == 0 then
    call("DEL", prefix .. "doorbell")
  elseif has_progress then
    ring_doorbell()
  end
end

key_of("in_flight:" .. claim.worker, "HLEN")
key_of("admitting:" .. claim.worker, "HLEN")
if not call("ZSCORE", prefix .. "workers", claim.worker) then
  return { "LOST" }
end
claim.admitting = call("HGETALL", prefix .. "admitting:" .. claim.worker) -- token, element, ... that it must admit
if repeat_last_claim() then
  return reply()
end
read_permits(claim)
if is_paused(claim, "queue") then
  return reply()
end
promote_delayed(claim)
local has_taken_inbox, num_unparked = take_inbox(claim), unpark_claimable(claim)
if scheduling().is_mixed then
  claim.num_examined = move_misplaced()
end
take_from_lanes()
if #claim.ids == 0 and claim.num_avoided > 0 then
  claim.num_avoided = 0
  take_from_lanes()
end
write_claim()
pass_doorbell_on(has_taken_inbox or num_unparked + claim.num_examined > 0)
return reply()
