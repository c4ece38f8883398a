-- accept: turn eight values of ARGV into a request that waits.

local accepted = { number = 0, cost = 0 } -- requests that this script accepts, and their estimated tokens

table.insert(writers, 1, function() -- the first, since the second writes what is counted
  count("submitted", accepted.number)
  count("queued", accepted.number)
  count("queued_tokens", accepted.cost)
end)

local STREAM_FACT = "|!?stream="

-- Read one request of ARGV, whose values begin at `first`, into a table; docs/protocol.md lists the values. Callers
-- use one table for all requests, as 500 tables would cost.
local function read_request(request, first)
  request.id, request.tenant, request.priority, request.deadline_in_ms, request.delay_ms, request.digest, request.tail,
    request.payload = unpack(ARGV, first, first + 7)
end

local function record_of(request, deadline_ms, time_ms)
  return "1|" .. integer(time_ms) .. "|" .. integer(deadline_ms) .. "|" .. request.tenant .. "|" .. request.priority
    .. "|" .. request.digest .. "|" .. request.tail .. "\n" .. request.payload
end

local function start_waiting(request, record, deadline_ms, time_ms)
  local delay_ms = tonumber(request.delay_ms)
  if deadline_ms > 0 then
    call("ZADD", prefix .. "deadlines", deadline_ms, request.id)
  end
  if delay_ms > 0 then
    call("ZADD", prefix .. "delayed", time_ms + delay_ms, request.id)
  else -- a list needs only tenant and priority of the header
    enqueue(request.id, scheduling().kind == "pending" and request or header_of(record), 0, false)
  end
end

-- Accept one new request. Returns "accepted", "queued" (already there), "done" (already terminal)
-- or "conflict" (the id belongs to another body or endpoint). `is_new` says that the id has no result.
local function accept(request, is_new, time_ms)
  local result = not is_new and beginning_of(prefix .. "result:" .. request.id)
  if result then
    return string.find(result, '"digest":"' .. request.digest .. '"', 1, true) and "done" or "conflict"
  end
  local deadline_in_ms = tonumber(request.deadline_in_ms)
  local deadline_ms = deadline_in_ms > 0 and time_ms + deadline_in_ms or 0
  local record = record_of(request, deadline_ms, time_ms)
  if not call("SET", prefix .. "request:" .. request.id, record, "NX") then
    local present = stored_header(request.id)
    if present then
      return present.digest == request.digest and "queued" or "conflict"
    end
    call("SET", prefix .. "request:" .. request.id, record) -- replaces a value of a wrong type
  end
  if string.find(request.tail, STREAM_FACT) then
    call("UNLINK", prefix .. "events:" .. request.id) -- left by an earlier request with this id
  end
  accepted.number, accepted.cost = accepted.number + 1, accepted.cost + (request.cost or header_of(record).cost)
  count_record(request.tenant, 1, #record)
  start_waiting(request, record, deadline_ms, time_ms)
  return "accepted"
end
