-- finish: write the terminal record of a request, and count and announce its end.

local MAX_FINISHED_IDS = 10000

local batch_counts, finished = {}, {} -- batch -> status -> amount; client -> ids
local ended, ended_keys = {}, {} -- ids, and the keys of their records, which the writer below deletes

local function outcome_without_response(attempt, code, message)
  return '"attempt":' .. attempt .. ',"response":null,"error":{"code":"' .. code .. '","message":"' .. message .. '"}'
end

local function terminal_record(id, header, status, outcome, time_ms)
  return '{"id":"' .. id .. '","status":"' .. status .. '","endpoint":"' .. header.endpoint
    .. '","tenant":"' .. header.tenant .. '","digest":"' .. header.digest .. '","enqueued_ms":' .. header.enqueued_ms .. ',"finished_ms":'
    .. integer(time_ms) .. ',"metadata":' .. (header.metadata == "" and "null" or header.metadata) .. "," .. outcome .. "}"
end

-- Note the end of a request for its batch and for its client; the writers below pass it on.
local function note_end(id, header, status)
  if header.batch ~= "" then
    local of_batch = batch_counts[header.batch] or {}
    of_batch[status] = (of_batch[status] or 0) + 1
    batch_counts[header.batch] = of_batch
  end
  if header.reply ~= "" then
    local ids = finished[header.reply] or {}
    ids[#ids + 1] = id
    finished[header.reply] = ids
  end
end

-- Write the terminal record; no other function does. `num_bytes` is the size of the request's record, `outcome` the
-- inside of a JSON object. Returns false if the request has a terminal record. Invariants 1 and 2: the request goes in
-- the same step, and the first record wins.
local function finish(id, num_bytes, header, status, outcome, ttl_ms, time_ms)
  local result = terminal_record(id, header, status, outcome, time_ms)
  local result_key = prefix .. "result:" .. id
  if not call("SET", result_key, result, "NX", "PX", ttl_ms) then
    if call("MGET", result_key)[1] then
      return false
    end
    call("SET", result_key, result, "PX", ttl_ms) -- replaces a value of a wrong type
  end
  ended[#ended + 1], ended_keys[#ended + 1] = id, prefix .. "request:" .. id
  if header.deadline_ms > 0 then
    call("ZREM", prefix .. "deadlines", id)
  end
  count(status, 1)
  count_record(header.tenant, -1, num_bytes)
  note_end(id, header, status)
  return true
end

writers[#writers + 1] = function()
  for from = 1, #ended, MAX_UNPACKED do
    local to = math.min(from + MAX_UNPACKED - 1, #ended)
    call("UNLINK", unpack(ended_keys, from, to))
    call("HDEL", prefix .. "attempts", unpack(ended, from, to))
  end
end

writers[#writers + 1] = function(_, time_ms)
  for batch, of_batch in pairs(batch_counts) do
    local batch_key = key_of("batch:" .. batch, "HLEN")
    for status, amount in pairs(of_batch) do
      call("HINCRBY", batch_key, status, amount)
    end
    call("PEXPIRE", batch_key, 7 * DAY_MS)
    complete_batch(batch, time_ms)
  end
end

writers[#writers + 1] = function(ttl_ms)
  for client, ids in pairs(finished) do
    local finished_key = key_of("finished:" .. client, "LLEN")
    for from = 1, #ids, MAX_UNPACKED do
      call("RPUSH", finished_key, unpack(ids, from, math.min(from + MAX_UNPACKED - 1, #ids)))
    end
    call("LTRIM", finished_key, -MAX_FINISHED_IDS, -1)
    call("PEXPIRE", finished_key, ttl_ms)
  end
end
