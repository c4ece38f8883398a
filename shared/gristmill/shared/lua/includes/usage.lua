-- usage: add what requests used to the ledger of their day.
--
-- A worker sends the sums of a call, since sums in Lua would make an ack 10 % slower. ack.lua subtracts the requests
-- that it does not store (invariant 2), so the ledger has each request exactly once.

local USAGE_DAYS = 400 -- a year can be billed, and some weeks later
local MAX_MODELS = 100 -- of one tenant on one day, so that no tenant fills the day; the rest counts as model "*"
local MAX_USAGE_FIELDS = 10000 -- of one day; then each new tenant has one field, for all its models
local OTHERS = "*|*" -- field of the tenants after the next MAX_TENANTS; no tenant has this name
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

local function num_models_of(usage_key, tenant)
  local cursor, num_models = "0", 0
  repeat
    local page = call("HSCAN", usage_key, cursor, "MATCH", tenant .. "|*", "COUNT", MAX_USAGE_FIELDS)
    cursor, num_models = page[1], num_models + #page[2] / 2
  until cursor == "0"
  return num_models
end

-- Return the field for a tenant and model that the day does not have yet, and its value. A tenant whose field "*"
-- exists has reached its limit, so its models are counted at most MAX_MODELS times.
local function new_field(usage_key, name, num_fields)
  local tenant = string.match(name, "^[^|]*")
  local others = tenant .. "|*"
  local value = call("HGET", usage_key, others)
  if value then
    return others, value
  elseif num_fields < MAX_USAGE_FIELDS and num_models_of(usage_key, tenant) < MAX_MODELS then
    return name, false
  elseif num_fields < MAX_USAGE_FIELDS + MAX_TENANTS then
    return others, false
  end
  return OTHERS, call("HGET", usage_key, OTHERS)
end

local function add_new(usage_key, sum)
  local num_fields = call("HLEN", usage_key)
  local field, value = new_field(usage_key, sum[6], num_fields)
  call("HSET", usage_key, field, with_usage(value, sum))
  if num_fields == 0 then
    call("PEXPIRE", usage_key, USAGE_DAYS * DAY_MS)
  end
end

-- One HMGET and one HSET for a whole call cost less than one HINCRBY for each number.
local function add_to_ledger(stored, fields, time_ms)
  local name = "usage:" .. math.floor(time_ms / DAY_MS)
  local usage_key, values = prefix .. name, {}
  local known = redis.pcall("HMGET", usage_key, unpack(fields))
  if known.err then
    known = call("HMGET", key_of(name, "HLEN"), unpack(fields))
  end
  for i = 1, #fields do
    if known[i] then
      values[#values + 1], values[#values + 2] = fields[i], with_usage(known[i], stored[i])
    end
  end
  if #values > 0 then
    call("HSET", usage_key, unpack(values))
  end
  for i = 1, #fields do
    if not known[i] then
      add_new(usage_key, stored[i])
    end
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
