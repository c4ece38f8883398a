-- counters: count what changes while a script runs, and write it once with flush().
--
-- Every verb that changes anything ends with flush(). Other subjects add what they gather to `writers`.

local LARGE_BYTES = 256 * 1024 -- a claim asks for the sizes of records only while some are larger

local counts, loads = {}, {} -- field -> amount; tenant -> { requests, bytes }
local writers = {} -- functions that flush() calls in this order, each with ttl_ms and time_ms

local function count(field, amount)
  counts[field] = (counts[field] or 0) + amount
end

-- Count a request that begins (sign 1) or ceases (-1) to wait, with its estimated tokens.
local function count_queued(cost, sign)
  count("queued", sign)
  count("queued_tokens", sign * cost)
end

-- Count a request that a worker takes (sign 1) or lets go (-1), with its estimated tokens.
local function count_in_flight(cost, sign)
  count("in_flight", sign)
  count("in_flight_tokens", sign * cost)
end

-- Count a record that has come (sign 1) or gone (sign -1), for the queue and for its tenant.
local function count_record(tenant, sign, num_bytes)
  count("bytes", sign * num_bytes)
  if num_bytes > LARGE_BYTES then
    count("large", sign)
  end
  local load = loads[tenant]
  if not load then
    load = { requests = 0, bytes = 0 }
    loads[tenant] = load
  end
  load.requests = load.requests + sign
  load.bytes = load.bytes + sign * num_bytes
end

-- Return the requests in the queue, waiting or in flight, and the bytes of their records.
local function depth_and_bytes()
  local now = call("HMGET", prefix .. "stats", "queued", "in_flight", "bytes")
  return (tonumber(now[1]) or 0) + (tonumber(now[2]) or 0), tonumber(now[3]) or 0
end

-- Set to 0 what an empty queue cannot have. A record that somebody deleted or damaged takes tokens, bytes and a tenant
-- with it that no script knows any more.
local function settle_emptied(field, tokens)
  if tokens ~= 0 then
    call("HSET", prefix .. "stats", field .. "_tokens", 0)
  end
  local depth, bytes = depth_and_bytes()
  if depth == 0 and bytes ~= 0 then
    call("HSET", prefix .. "stats", "bytes", 0)
    call("DEL", prefix .. "tenant_load")
  end
end

-- The last to write counters.
local function write_counts()
  local reached = {} -- field -> its new amount
  for field, amount in pairs(counts) do
    if amount ~= 0 then
      reached[field] = call("HINCRBY", prefix .. "stats", field, integer(amount))
    end
  end
  for _, field in ipairs({ "queued", "in_flight" }) do
    if reached[field] == 0 then
      settle_emptied(field, reached[field .. "_tokens"])
    end
  end
end

writers[1] = function()
  for tenant, load in pairs(loads) do
    for what, amount in pairs(load) do
      local field = tenant .. "|" .. what
      -- Below 0 if a version that did not count has accepted the request.
      if amount ~= 0 and call("HINCRBY", prefix .. "tenant_load", field, integer(amount)) <= 0 then
        call("HDEL", prefix .. "tenant_load", field)
      end
    end
  end
end

local function flush(ttl_ms, time_ms)
  for _, write in ipairs(writers) do
    write(ttl_ms, time_ms)
  end
  write_counts()
end
