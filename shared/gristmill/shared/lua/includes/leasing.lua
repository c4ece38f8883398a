-- taking: lease a popped id, or end it, or move it to its place. Part of claim.

local function end_queued(claim, item, status, code, message)
  local outcome = outcome_without_response(item.attempt, code, message)
  if not finish(item.id, item.record, item.header, status, outcome, claim.result_ttl_ms, claim.time_ms) then
    return false
  end
  count("queued", -1)
  return true
end

local function end_unreadable(claim, item)
  if end_queued(claim, item, "failed", "unreadable", "the stored record cannot be read; a dead letter has its bytes") then
    dead_letter(item.id, "unreadable", "", item.attempt, item.crashes, item.record, claim.time_ms)
  end
end

-- Return whether the engine cannot meet a deadline, by the tokens that such requests take and the time of each. The
-- request then ends at once: its client learns early, and its tokens go to requests that can be met.
local function is_infeasible(claim, header)
  return scheduling().kind == "pending_deadline" and header.deadline_ms > 0
    and claim.time_ms + header.max_tokens * claim.ms_per_token > header.deadline_ms -- else the tenant is not read
    and claim.time_ms + header.max_tokens * output_share_of(header.tenant) * claim.ms_per_token > header.deadline_ms
end

local function end_infeasible(claim, item)
  local tokens = integer(item.header.max_tokens * output_share_of(item.header.tenant))
  end_queued(claim, item, "expired", "expired", "the deadline cannot be met: about " .. tokens .. " tokens at "
    .. string.format("%.3g", claim.ms_per_token) .. " ms each take longer")
end

-- End a request that should not run, or move one that lies in a wrong place; returns whether it did either.
local function end_or_move(claim, entry, item)
  local header = item.header
  if not header.is_readable then
    end_unreadable(claim, item)
    return true
  elseif header.deadline_ms > 0 and header.deadline_ms <= claim.time_ms then
    end_queued(claim, item, "expired", "expired", "the deadline passed while the request waited")
    return true
  end
  local lane, flow, kind = place_of(header, item.crashes)
  if lane ~= entry.lane or flow ~= entry.flow.name or kind ~= entry.kind then
    enqueue(item.id, header, item.crashes, false) -- the order has changed, or the id was submitted again
    claim.num_moved = claim.num_moved + 1
    return true
  elseif is_infeasible(claim, header) then
    end_infeasible(claim, item)
    return true
  end
  return false
end

-- Return whether the claim may take a request; if not, note that the claim is full.
local function has_room(claim, item)
  if item.runs_alone and (claim.has_suspects or claim.num_suspects > 0) then
    claim.max_suspects = 0
    return false
  elseif #claim.ids > 0 and claim.spent_tokens + item.header.cost > claim.max_tokens then
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
  return cost, claim.worker .. "|" .. cost .. "|" .. lane .. "|" .. flow.name
end

-- Put a request into the claim's reply. The schema's `attempts` says what its numbers mean.
local function reply_with(claim, id, delivery, uncounted, crashes, record)
  local reply, n = claim.reply, #claim.reply
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4], reply[n + 5] = id, delivery, delivery - uncounted, crashes, record
end

-- Lease a request to the worker; returns its expected cost in tokens. Invariant 3: the fence is written here.
local function lease(claim, entry, item)
  local id, delivery, deliveries, owners = item.id, item.deliveries + 1, claim.deliveries, claim.owners
  reply_with(claim, id, delivery, item.uncounted, item.crashes, item.record)
  claim.ids[#claim.ids + 1], claim.is_taken[id] = id, true
  deliveries[#deliveries + 1], deliveries[#deliveries + 2] = id, delivery
  if item.was_tried then
    set_attempts(id, delivery, item.uncounted, item.crashes)
  end
  if entry.lane == "suspect" then
    claim.num_suspects = claim.num_suspects + 1
    claim.max_suspects = item.runs_alone and 0 or claim.max_suspects - 1
  end
  claim.spent_tokens = claim.spent_tokens + item.header.cost
  local cost, owner = charge_of(claim, item.header, entry.lane, entry.flow)
  owners[#owners + 1], owners[#owners + 2] = id, owner
  return cost
end

-- Take one popped id. Returns its expected cost in tokens, 0 if it was not leased, nil if it must go back to the front.
local function take(claim, entry, record, is_elsewhere, attempts)
  if not record or is_elsewhere then
    return 0 -- a tombstone, or an old entry of an id that runs or is delayed
  end
  local deliveries, uncounted, crashes = parse_attempts(attempts)
  local item = { id = entry.id, record = record, header = header_of(record), was_tried = attempts,
    deliveries = deliveries, uncounted = uncounted, crashes = crashes, attempt = deliveries - uncounted,
    runs_alone = entry.lane == "suspect" and crashes > 1 }
  if end_or_move(claim, entry, item) then
    return 0
  end
  return has_room(claim, item) and lease(claim, entry, item) or nil
end
