-- ack: write terminal records in bulk.
--
-- KEYS[1]  prefix
-- ARGV     worker, result_ttl_ms, then for each request:
--          id, delivery, status (succeeded or failed), outcome (inside of a JSON object),
--          prompt_tokens, output_tokens (as the engine counted them; both 0 if it did not)
-- Returns  a code for each: 1 stored; 2 stored late (a success from a worker that no longer holds
--          it, accepted since nobody had finished; its holder is told to abort); 0 changed nothing
-- Keeps    2 (one terminal record), 3 (only a holder may fail a request)
--
-- A claim charges a tenant what its requests are expected to take; what they took is known here, so the difference
-- is made good while the tenant still waits, and what is expected of the next follows it.

local time_ms = now_ms()
local worker, result_ttl_ms = ARGV[1], ARGV[2]
local inflight_key = prefix .. "inflight:" .. worker
local codes, refunds, seen_shares = {}, {}, {}

local function learn(header, status, prompt_tokens, output_tokens)
  local took = prompt_tokens + output_tokens
  if took == 0 and status == "succeeded" then
    return
  end
  local lane, flow = place_of(header, 0)
  if flow ~= "*" then
    local place = lane .. ":" .. flow
    refunds[place] = (refunds[place] or 0) + bounded_cost(took) - expected_cost(header)
  end
  if output_tokens > 0 and header.max_tokens > 0 then
    local share = seen_shares[header.tenant] or output_share(header.tenant)
    seen_shares[header.tenant] = share + (math.min(1, output_tokens / header.max_tokens) - share) * SHARE_STEP
  end
end

local function remember()
  for place, amount in pairs(refunds) do
    local lane, flow = string.match(place, "^(%a+):(.*)$")
    if amount ~= 0 then
      call("ZADD", prefix .. "ring:" .. lane, "XX", "INCR", exact(amount / weight_of(flow)), flow)
    end
  end
  for tenant, share in pairs(seen_shares) do
    call("HSET", prefix .. "output_share", tenant, string.format("%.4f", share))
  end
  if next(seen_shares) then
    call("PEXPIRE", prefix .. "output_share", 7 * DAY_MS)
  end
end

local function settle(id, delivery, status, outcome, prompt_tokens, output_tokens)
  local is_held = call("HGET", inflight_key, id) == delivery
  local record = call("GET", prefix .. "request:" .. id)
  if not record or not (is_held or status == "succeeded") then
    if is_held then
      disown(id)
    end
    return 0
  end
  local header = header_of(record)
  if not finish(id, record, header, status, outcome, result_ttl_ms, time_ms) then
    return 0
  end
  learn(header, status, prompt_tokens, output_tokens)
  if is_held then
    call("HDEL", inflight_key, id)
    call("HDEL", prefix .. "owner", id)
    count("in_flight", -1)
    return 1
  end
  local holder = disown(id)
  count("late", 1)
  if not holder then
    count("queued", -1)
    call("ZREM", prefix .. "delayed", id)
  elseif holder ~= worker then
    call("RPUSH", prefix .. "abort:" .. holder, id)
  end
  return 2
end

for i = 3, #ARGV, 6 do
  local code = settle(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], tonumber(ARGV[i + 4]), tonumber(ARGV[i + 5]))
  if code == 0 then
    count("stale", 1)
  end
  codes[#codes + 1] = code
end
remember()
flush(result_ttl_ms, time_ms)
return codes
