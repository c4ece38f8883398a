-- suspects: give back what was in flight when an engine or a worker died.

-- Return what a worker holds, suspects first, and how many of it are suspects already.
local function held_by(worker)
  local held = call("HGETALL", key_of("in_flight:" .. worker, "HLEN"))
  local suspects, others = {}, {}
  for start = 1, #held, 2 * MAX_UNPACKED do
    local ids = {}
    for i = start, math.min(start + 2 * MAX_UNPACKED, #held) - 1, 2 do
      ids[#ids + 1] = held[i]
    end
    for j, attempts in ipairs(call("HMGET", prefix .. "attempts", unpack(ids))) do
      local _, uncounted, crashes = parse_attempts(attempts)
      local into = crashes > 0 and suspects or others
      into[#into + 1] = { id = ids[j], delivery = tonumber(held[start + 2 * j - 1]), uncounted = uncounted, crashes = crashes }
    end
  end
  local num_suspects = #suspects
  for _, item in ipairs(others) do
    suspects[#suspects + 1] = item
  end
  return suspects, num_suspects
end

-- End a request that killed its engine again, as its only suspect; returns whether it ended here.
local function fail_lone_suspect(item, evidence, ttl_ms, time_ms)
  local record = stored_record(item.id)
  local attempt, crashes = item.delivery - item.uncounted, item.crashes + 1
  local outcome = outcome_without_response(attempt, "engine_killed",
    "the engine died " .. crashes .. " times while this request ran, the last time as its only suspect")
  if not finish(item.id, #record, header_of(record), "failed", outcome, ttl_ms, time_ms) then
    return false
  end
  dead_letter(item.id, "engine_killed", evidence, attempt, crashes, record, time_ms)
  return true
end

local function return_as_suspect(item, header)
  set_attempts(item.id, item.delivery, item.uncounted + 1, item.crashes + 1)
  enqueue(item.id, header, item.crashes + 1, true)
  count_queued(header.cost, 1)
  count("crashed", 1)
end

-- Give back at most `limit` ids of a worker; returns how many it moved, and which of them are dead letters now.
-- Suspects go first and never leave one alone behind, so no verdict rests on a part of what was in flight.
local function give_back_as_suspects(worker, limit, evidence, ttl_ms, time_ms)
  local held, num_suspects = held_by(worker)
  local num_moved, dead_ids = math.min(#held, limit), {}
  if num_suspects - num_moved == 1 and num_suspects > 1 then
    num_moved = num_moved - 1
  end
  for i = num_moved, 1, -1 do -- backwards, so that the first is at the front of its lane
    local item = held[i]
    local header = stored_header(item.id)
    disown(item.id, header)
    if header and num_suspects == 1 and item.crashes > 0 then
      if fail_lone_suspect(item, evidence, ttl_ms, time_ms) then
        dead_ids[#dead_ids + 1] = item.id
      end
    elseif header then
      return_as_suspect(item, header)
    end
  end
  return num_moved, dead_ids
end
