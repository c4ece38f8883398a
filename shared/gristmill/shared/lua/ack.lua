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
-- What is expected of a tenant's next requests follows what its last ones generated.

local time_ms = now_ms()
local worker, result_ttl_ms = ARGV[1], ARGV[2]
local inflight_key = prefix .. "inflight:" .. worker
local codes, seen_shares = {}, {}

local function learn(header, output_tokens)
  if output_tokens > 0 and header.max_tokens > 0 then
    local share = seen_shares[header.tenant] or output_share(header.tenant)
    seen_shares[header.tenant] = share + (math.min(1, output_tokens / header.max_tokens) - share) * SHARE_STEP
  end
end

local function remember()
  local shares_key = prefix .. "output_share"
  for tenant, share in pairs(seen_shares) do
    call("HSET", shares_key, tenant, string.format("%.4f", share))
  end
  if next(seen_shares) then
    if call("HLEN", shares_key) > MAX_TENANTS then
      call("DEL", shares_key) -- learned anew
    end
    call("PEXPIRE", shares_key, 7 * DAY_MS)
  end
end

if #ARGV < 3 then
  return codes
end

-- What the requests are before any is settled; of one that stands there twice the second finds its result.
local ids, request_keys, settled = {}, {}, {}
for i = 3, #ARGV, 6 do
  ids[#ids + 1] = ARGV[i]
  request_keys[#ids] = prefix .. "request:" .. ARGV[i]
end
local deliveries = call("HMGET", inflight_key, unpack(ids))
local records = call("MGET", unpack(request_keys))
local owners = call("HMGET", prefix .. "owner", unpack(ids))

local function settle(n, id, delivery, status, outcome, prompt_tokens, output_tokens)
  local is_held, record = deliveries[n] == delivery, records[n]
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
  learn(header, output_tokens)
  if is_held then
    local took = prompt_tokens + output_tokens
    if took > 0 or status == "failed" then -- else the engine did not count
      settle_charge(owners[n], bounded_cost(took))
    end
    settled[#settled + 1] = id
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

for n, id in ipairs(ids) do
  local i = 6 * n - 3
  local code = settle(n, id, ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], tonumber(ARGV[i + 4]), tonumber(ARGV[i + 5]))
  if code == 0 then
    count("stale", 1)
  end
  codes[n] = code
end
if #settled > 0 then
  count("in_flight", -#settled)
  call("HDEL", inflight_key, unpack(settled))
  call("HDEL", prefix .. "owner", unpack(settled))
end
remember()
flush(result_ttl_ms, time_ms)
return codes
