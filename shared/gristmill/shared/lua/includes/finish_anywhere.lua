-- finish_anywhere: end a request as cancelled or expired, waiting or in flight. No worker is needed for it.

-- Returns "running" if a worker held the request (beat tells the worker to abort), "queued" if it waited, or false
-- if it was terminal already.
local function finish_anywhere(id, status, message, ttl_ms, time_ms)
  local header = stored_header(id)
  local num_bytes = header and call("STRLEN", prefix .. "request:" .. id)
  local outcome = outcome_without_response(attempt_of(id), status, message)
  if not header or not finish(id, num_bytes, header, status, outcome, ttl_ms, time_ms) then
    return false
  end
  local worker = disown(id, header)
  if worker then
    call("RPUSH", key_of("abort:" .. worker, "LLEN"), id)
    return "running"
  end
  call("ZREM", prefix .. "delayed", id)
  unpark(id, header)
  count_queued(header.cost, -1)
  return "queued"
end
