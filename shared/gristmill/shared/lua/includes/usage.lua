-- usage: add what requests used to the ledger of their day.
--
-- A worker sends the sums of a call, since sums in Lua would make an ack a tenth dearer. The verb takes from them what
-- it does not end (invariant 2), so the ledger has each request exactly once.

local USAGE_DAYS = 400 -- a year can be billed, and some weeks later
local MAX_USAGE_FIELDS = 10000 -- of one day; the call that reaches it may add some more
local OTHERS = "*|*" -- field of what a full day has no room for; no tenant has this name
local UNUSED = "0|0|0|0|0"
local SUM = "(%d+)|(%d+)|(%d+)|(%d+)|(%d+)|([^\n]+)"

local sums = {} -- { requests, prompt_tokens, cached_tokens, output_tokens, device_ms, "tenant|model" }

local function read_sums(text)
  for requests, prompt_tokens, cached_tokens, output_tokens, device_ms, name in string.gmatch(text, SUM) do
    sums[#sums + 1] = { requests, prompt_tokens, cached_tokens, output_tokens, device_ms, name }
  end
end

-- Take a request from the sum of this number, if there is one.
local function take_from_sum(number, prompt_tokens, cached_tokens, output_tokens, device_ms)
  local sum = sums[number]
  if sum then
    sum[1], sum[2], sum[3] = sum[1] - 1, sum[2] - prompt_tokens, sum[3] - cached_tokens
    sum[4], sum[5] = sum[4] - output_tokens, sum[5] - device_ms
  end
end

-- Return a value of the ledger with a sum added. What a later version appended to it stays.
local function with_usage(value, sum)
  local requests, prompt_tokens, cached_tokens, output_tokens, device_ms, rest =
    string.match(value or UNUSED, "^(%d+)|(%d+)|(%d+)|(%d+)|(%d+)(.*)$")
  return string.format("%d|%d|%d|%d|%d%s", (requests or 0) + sum[1], (prompt_tokens or 0) + sum[2],
    (cached_tokens or 0) + sum[3], (output_tokens or 0) + sum[4], (device_ms or 0) + sum[5], rest or "")
end

-- One HMGET and one HSET for a whole call cost less than one HINCRBY for each number.
local function add_to_ledger(stored, fields, time_ms)
  local name = "usage:" .. math.floor(time_ms / DAY_MS)
  local usage_key, values, num_fields, others = prefix .. name, {}, nil, nil
  local known = redis.pcall("HMGET", usage_key, unpack(fields))
  if known.err then
    known = call("HMGET", key_of(name, "HLEN"), unpack(fields))
  end
  for i = 1, #fields do
    num_fields = num_fields or not known[i] and call("HLEN", usage_key)
    if known[i] or num_fields < MAX_USAGE_FIELDS then
      values[2 * i - 1], values[2 * i] = fields[i], with_usage(known[i], stored[i])
    else
      others = with_usage(others or call("HGET", usage_key, OTHERS), stored[i])
      values[2 * i - 1], values[2 * i] = OTHERS, others -- the last one counts
    end
  end
  call("HSET", usage_key, unpack(values))
  if num_fields == 0 then
    call("PEXPIRE", usage_key, USAGE_DAYS * DAY_MS)
  end
end

writers[#writers + 1] = function(_, time_ms)
  local stored, fields = {}, {}
  for i = 1, #sums do
    if sums[i][1] ~= 0 then
      stored[#stored + 1], fields[#fields + 1] = sums[i], sums[i][6]
    end
  end
  if #fields > 0 then
    add_to_ledger(stored, fields, time_ms)
  end
end
