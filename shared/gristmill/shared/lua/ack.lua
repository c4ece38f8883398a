-- ack: write terminal records in bulk.
--
-- KEYS[1]  prefix
-- ARGV     worker, result_ttl_ms, then for each request:
--          id, fence, status (succeeded or failed), outcome (inside of a JSON object),
--          prompt_tokens, output_tokens (as the engine counted them; both 0 if it did not);
--          last, and both may be left out, two arguments for the ledger (includes/usage.lua):
--          a line for each tenant and model, requests|prompt_tokens|cached_tokens|output_tokens|device_ms|tenant|model,
--          summed up over the requests; a JSON array with three numbers for each request: number of its line (0 for
--          none), cached_tokens, device_ms
-- Returns  a code for each: 1 stored; 2 stored late; 0 changed nothing
--          A late success comes from a worker that does not hold the request any more. It counts if the request
--          has no result yet and the fence has its enqueued_ms and digest, and the present holder must abort.
-- Keeps    2 (one terminal record), 3 (only a holder may fail a request)
--
-- It also learns the tenant's output share, the part of max_tokens that its requests really generate, and the pace
-- of the queue. It adds each request that it ends to the ledger (includes/usage.lua).

local PACE_WINDOW_MS = 60000 -- the pace forgets half of itself after so much working time
local SHARE_STEP = 1 / 64 -- a tenant's output share follows half of a change after some 45 requests

local time_ms = now_ms()
local worker, result_ttl_ms = ARGV[1], ARGV[2]
local in_flight_key = key_of("in_flight:" .. worker, "HLEN")
local codes, new_shares = {}, {}
local num_settled_tokens, num_let_go_tokens = 0, 0 -- estimated: of all that this call ends; of those that it holds

local function learn_output_share(header, output_tokens)
  if output_tokens > 0 and header.max_tokens > 0 then
    local share = new_shares[header.tenant] or output_share_of(header.tenant)
    new_shares[header.tenant] = share + (math.min(1, output_tokens / header.max_tokens) - share) * SHARE_STEP
  end
end

local function write_output_shares()
  local shares_key = prefix .. "tenant_output_shares"
  for tenant, share in pairs(new_shares) do
    call("HSET", shares_key, tenant, string.format("%.4f", share))
  end
  if next(new_shares) then
    if call("HLEN", shares_key) > MAX_TENANTS then
      call("DEL", shares_key) -- all shares are learned again
    end
    call("PEXPIRE", shares_key, 7 * DAY_MS)
  end
end

if #ARGV < 8 then
  return codes
end

-- Add what this call ends to the pace of the queue: tokens in the time in which requests were in flight, mostly of the
-- last minute. The tokens are those of the headers, as in queued_tokens, so that a quotient of the two is a time.
local function note_pace()
  local pace = call("HMGET", prefix .. "pace", "tokens", "busy_ms", "since_ms")
  local tokens = (tonumber(pace[1] or 0) or 0) + num_settled_tokens
  local has_worked = tonumber(call("HGET", prefix .. "stats", "in_flight") or 0) > 0 -- else a late ack ends idle time
  local busy_ms = (tonumber(pace[2] or 0) or 0)
    + (has_worked and math.max(0, time_ms - (tonumber(pace[3] or nil) or time_ms)) or 0)
  if busy_ms > PACE_WINDOW_MS then
    tokens, busy_ms = math.floor(tokens / 2), math.floor(busy_ms / 2)
  end
  call("HSET", prefix .. "pace", "tokens", integer(tokens), "busy_ms", integer(busy_ms), "since_ms", integer(time_ms))
end

-- Read all requests before any is settled. If an id stands in ARGV twice, the second finds the first one's result.
local ids, request_keys, settled = {}, {}, {}
for i = 3, #ARGV - 5, 6 do
  ids[#ids + 1] = ARGV[i]
  request_keys[#ids] = prefix .. "request:" .. ARGV[i]
end
local uses = #ARGV == 6 * #ids + 4 and ARGV[#ARGV]
if uses then
  read_sums(ARGV[#ARGV - 1])
end
local deliveries = call("HMGET", in_flight_key, unpack(ids))
local records = call("MGET", unpack(request_keys))
local owners = call("HMGET", prefix .. "owner", unpack(ids))

-- Let go of a request that this worker has finished but does not hold.
local function end_late(id, header)
  local holder = disown(id, header)
  count("late", 1)
  if not holder then
    count_queued(header.cost, -1)
    call("ZREM", prefix .. "delayed", id)
    unpark(id, header)
  elseif holder ~= worker then
    call("RPUSH", key_of("abort:" .. holder, "LLEN"), id)
  end
end

-- Return whether a success is that of an earlier claim of this very request.
local function is_late(fence, status, header)
  return status == "succeeded" and string.match(fence, "@.*$") == "@" .. header.enqueued_ms .. "@" .. header.digest
end

local function settle(n, id, fence, status, outcome, prompt_tokens, output_tokens)
  local record = records[n]
  local header = record and header_of(record)
  local is_held = is_current(deliveries[n], fence, header)
  if not header or not (is_held or is_late(fence, status, header)) then
    if is_held then
      disown(id)
    end
    return 0
  end
  if not finish(id, #record, header, status, outcome, result_ttl_ms, time_ms) then
    return 0
  end
  learn_output_share(header, output_tokens)
  if status == "succeeded" or output_tokens > 0 then -- a refused request made no tokens, whatever its max_tokens
    num_settled_tokens = num_settled_tokens + header.cost
  end
  if not is_held then
    end_late(id, header)
    return 2
  end
  local num_tokens = prompt_tokens + output_tokens
  if num_tokens > 0 then
    correct_charge(owners[n], bounded_cost(num_tokens))
  elseif status == "failed" then -- else the engine did not count, and the charge of the claim stands
    charge_uncounted(owners[n], header)
  end
  settled[#settled + 1] = id
  num_let_go_tokens = num_let_go_tokens + header.cost
  return 1
end

-- Take a request that this call did not end from what the call has used.
local function take_from_usage(n, prompt_tokens, output_tokens)
  if type(uses) == "string" then
    uses = cjson.decode(uses)
  end
  take_from_sum(uses[3 * n - 2], prompt_tokens, uses[3 * n - 1], output_tokens, uses[3 * n])
end

for n, id in ipairs(ids) do
  local i = 6 * n - 3
  local prompt_tokens, output_tokens = tonumber(ARGV[i + 4]), tonumber(ARGV[i + 5])
  local code = settle(n, id, ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], prompt_tokens, output_tokens)
  if code == 0 then
    count("stale", 1)
    if uses then
      take_from_usage(n, prompt_tokens, output_tokens)
    end
  end
  codes[n] = code
end
if #settled > 0 then
  count("in_flight", -#settled)
  count("in_flight_tokens", -num_let_go_tokens)
  call("HDEL", in_flight_key, unpack(settled))
  call("HDEL", prefix .. "owner", unpack(settled))
end
if num_settled_tokens > 0 then
  note_pace()
end
write_output_shares()
flush(result_ttl_ms, time_ms)
return codes
