-- taking: take requests from one lane until the claim has enough. Each popped id is leased, ended, or moved to its
-- place. Part of claim.

local MAX_EXAMINED = 256 -- ids that one claim pops, tombstones and overdue requests included
local TURN = 8 -- requests that a lane gets before the others when it has waited too long
local NEVER_TRIED = { deliveries = 0, uncounted = 0, crashes = 0 } -- of most ids: a table for each would cost

local function tries_of(attempts)
  if not attempts then
    return NEVER_TRIED
  end
  local deliveries, uncounted, crashes = parse_attempts(attempts)
  return { deliveries = deliveries, uncounted = uncounted, crashes = crashes }
end

local function end_queued(claim, id, record, header, status, outcome)
  if not finish(id, #record, header, status, outcome, claim.result_ttl_ms, claim.time_ms) then
    return false
  end
  count_queued(header.cost, -1)
  return true
end

local function end_unreadable(claim, id, record, header, tries)
  local attempt = tries.deliveries - tries.uncounted
  local outcome = outcome_without_response(attempt, "unreadable", "the stored record cannot be read; a dead letter has its bytes")
  if end_queued(claim, id, record, header, "failed", outcome) then
    dead_letter(id, "unreadable", "", attempt, tries.crashes, record, claim.time_ms)
  end
end

local function expire(claim, id, record, header, tries, message)
  local outcome = outcome_without_response(tries.deliveries - tries.uncounted, "expired", message)
  end_queued(claim, id, record, header, "expired", outcome)
end

-- Return whether the engine cannot meet a deadline, by the tokens that such requests take and the time of each. The
-- request then ends at once: its client learns early, and its tokens go to requests that can be met.
local function is_infeasible(claim, header)
  return header.deadline_ms > 0 and scheduling().kind == "pending_deadline"
    and claim.time_ms + header.max_tokens * claim.ms_per_token > header.deadline_ms -- else the tenant is not read
    and claim.time_ms + header.max_tokens * output_share_of(header.tenant) * claim.ms_per_token > header.deadline_ms
end

local function infeasible_message(claim, header)
  return "the deadline cannot be met: about " .. integer(header.max_tokens * output_share_of(header.tenant))
    .. " tokens at " .. string.format("%.3g", claim.ms_per_token) .. " ms each take longer"
end

-- End a request that should not run, park one that may not run here, or move one that lies in a wrong place; returns
-- whether it did any of these.
local function end_or_move(claim, entry, record, header, tries)
  if not header.is_readable then
    end_unreadable(claim, entry.id, record, header, tries)
    return true
  elseif header.deadline_ms > 0 and header.deadline_ms <= claim.time_ms then
    expire(claim, entry.id, record, header, tries, "the deadline passed while the request waited")
    return true
  end
  local reason = (claim.has_pauses or header.facts ~= "") and why_parked(claim, header)
  if reason then
    park(entry.id, header, reason)
    return true
  end
  local lane, flow, kind = place_of(header, tries.crashes)
  if lane ~= entry.lane or flow ~= entry.flow.name or kind ~= entry.kind then
    enqueue(entry.id, header, tries.crashes, false) -- the order has changed, or the id was submitted again
    claim.num_moved = claim.num_moved + 1
    return true
  elseif is_infeasible(claim, header) then
    expire(claim, entry.id, record, header, tries, infeasible_message(claim, header))
    return true
  end
  return false
end

-- Return whether the claim may take a request; if not, note that the claim is full.
local function has_room(claim, header, tries)
  if tries.crashes > 1 and (claim.has_suspects or claim.num_suspects > 0) then
    claim.max_suspects = 0 -- this suspect runs alone
    return false
  elseif #claim.ids > 0 and claim.spent_tokens + header.cost > claim.max_tokens then
    claim.is_spent = true
    return false
  end
  return true
end

-- Return what a request is expected to cost its tenant, and what `owner` says of it.
local function charge_of(claim, header, lane, flow)
  if flow.name == "*" then
    return 1, claim.worker
  end
  local cost = expected_cost(header)
  return cost, claim.worker .. "|" .. integer(cost) .. "|" .. lane .. "|" .. flow.name
end

-- Put a request into the claim's reply. The schema's `attempts` says what its numbers mean.
local function reply_with(claim, id, delivery, uncounted, crashes, record)
  local reply, n = claim.reply, #claim.reply
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4], reply[n + 5] = id, delivery, delivery - uncounted, crashes, record
end

-- Lease a request to the worker; returns its expected cost in tokens. Invariant 3: the fence is written here.
local function lease(claim, entry, record, header, tries)
  local id, delivery, ids, deliveries, owners = entry.id, tries.deliveries + 1, claim.ids, claim.deliveries, claim.owners
  reply_with(claim, id, delivery, tries.uncounted, tries.crashes, record)
  ids[#ids + 1], claim.is_taken[id] = id, true
  deliveries[#deliveries + 1], deliveries[#deliveries + 2] = id, integer(delivery)
  if tries ~= NEVER_TRIED then
    set_attempts(id, delivery, tries.uncounted, tries.crashes)
  end
  if entry.lane == "suspect" then
    claim.num_suspects = claim.num_suspects + 1
    claim.max_suspects = tries.crashes > 1 and 0 or claim.max_suspects - 1
  end
  claim.spent_tokens = claim.spent_tokens + header.cost
  local cost, owner = charge_of(claim, header, entry.lane, entry.flow)
  owners[#owners + 1], owners[#owners + 2] = id, owner
  return cost
end

-- Take one popped id. Returns its expected cost in tokens, 0 if it was not leased, nil if it must go back to the front.
local function take(claim, entry, record, is_elsewhere, attempts)
  if not record or is_elsewhere then
    return 0 -- a tombstone, or an old entry of an id that runs or is delayed
  end
  local header, tries = header_of(record), tries_of(attempts)
  if end_or_move(claim, entry, record, header, tries) then
    return 0
  end
  return has_room(claim, header, tries) and lease(claim, entry, record, header, tries) or nil
end

-- Return how many of these ids may be read without exceeding the bytes of the claim; the first always may.
local function num_readable(claim, entries)
  for i, entry in ipairs(entries) do
    local size = tonumber(redis.pcall("STRLEN", prefix .. "request:" .. entry.id)) or 0 -- of another type: no request
    if claim.spent_bytes > 0 and claim.spent_bytes + size > claim.max_record_bytes then
      claim.is_spent = true
      return i - 1
    end
    claim.spent_bytes = claim.spent_bytes + size
  end
  return #entries
end

-- Put back the ids from one on.
local function put_back_from(claim, entries, first)
  for i = #entries, first, -1 do
    put_back(claim, entries[i])
    entries[i] = nil
  end
end

-- Take popped ids in order. The first that must go back goes back with all that follow.
local function take_entries(claim, entries)
  if claim.has_large then
    put_back_from(claim, entries, num_readable(claim, entries) + 1)
    if #entries == 0 then
      return
    end
  end
  local names, request_keys = {}, {}
  for i, entry in ipairs(entries) do
    names[i], request_keys[i] = entry.id, prefix .. "request:" .. entry.id
  end
  local records, owners = call("MGET", unpack(request_keys)), call("HMGET", prefix .. "owner", unpack(names))
  local attempts = claim.has_attempts and call("HMGET", prefix .. "attempts", unpack(names)) or {}
  local due = claim.has_delayed and call("ZMSCORE", prefix .. "delayed", unpack(names)) or {}
  for i, entry in ipairs(entries) do
    local is_elsewhere = owners[i] or due[i] or claim.is_taken[entry.id]
    local cost = take(claim, entry, records[i], is_elsewhere, attempts[i])
    if not cost then
      put_back_from(claim, entries, i)
      return
    end
    entry.flow.cost = entry.flow.cost + cost
  end
end

-- Take up to `size` requests of a lane; returns false if the lane has none that the scheduling would take.
local function take_chunk(claim, lane, size)
  local popped = pop(claim, lane, size)
  if #popped.entries + #popped.emptied == 0 then
    return false
  end
  if #popped.entries > 0 then
    read_tenants(popped.flows)
    take_entries(claim, popped.entries)
  end
  charge(claim, lane, popped.flows)
  return true
end

local function wants_more(claim, lane)
  return #claim.ids < claim.max_ids and not claim.is_spent and claim.num_examined < MAX_EXAMINED
    and (lane ~= "suspect" or claim.max_suspects > 0)
end

-- Take from a lane until the claim has enough; `turn` bounds the requests taken.
local function take_from(claim, lane, turn)
  local before = #claim.ids
  claim.max_ids = math.min(claim.max_requests, before + claim.max_of_lane[lane] - claim.num_of_lane[lane])
  while wants_more(claim, lane) and take_chunk(claim, lane, turn or CHUNK) and not turn do
  end
  write_virtual_time(claim, lane)
  claim.num_of_lane[lane] = claim.num_of_lane[lane] + #claim.ids - before
  if #claim.ids > before and lane ~= "suspect" and lane ~= "high" then
    call("HSET", prefix .. "times", lane .. "_served_ms", integer(claim.time_ms))
  end
end
