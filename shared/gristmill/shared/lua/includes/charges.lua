-- charges: take an id from its holder, and correct what its tenant was charged when it was claimed.

local FAILURE_TOKENS = 256
local corrections = {} -- "lane|tenant" -> tokens to add to what the tenant has paid

-- Charge the tokens that a request took in the end, instead of those that its claim charged.
-- `owner` is the value of the id's field in the hash of this name.
local function correct_charge(owner, tokens)
  local cost, place = string.match(owner, "|(%d+)|(.*)$")
  if cost then
    corrections[place] = (corrections[place] or 0) + tokens - cost
  end
end

-- Return the tokens for a failed try. It had a place in the engine, so it costs as much as a short answer: a tenant
-- whose requests all fail would get every place. Its max_tokens does not count, or one refused request with a huge one
-- would hold up the tenant's others for long.
local function cost_of_failure(header)
  return bounded_cost(math.max(FAILURE_TOKENS, header.prompt_tokens))
end

-- Charge a request that ended without a count of its tokens as a failure, but no more than its claim charged.
local function charge_uncounted(owner, header)
  local cost, tokens = tonumber(string.match(owner, "|(%d+)|")), cost_of_failure(header)
  if cost and cost > tokens then
    correct_charge(owner, tokens)
  end
end

-- Take an id from its holder; returns the worker, or false. It is charged `tokens`, or as uncounted. Without a header
-- nobody knows what it cost.
local function disown(id, header, tokens)
  local worker, owner = holder_of(id)
  if worker then
    call("HDEL", prefix .. "owner", id)
    if tokens then
      correct_charge(owner, tokens)
    elseif header then
      charge_uncounted(owner, header)
    end
    if call("HDEL", prefix .. "in_flight:" .. worker, id) == 1 then
      count_in_flight(header and header.cost or 0, -1)
    end
  end
  return worker
end

-- Move a tenant in virtual time, where it waits or where its debt is remembered. It never falls behind the lane's
-- virtual time, or what it paid before all tenants started level would come back as credit.
local function move_in_virtual_time(place, tokens)
  local lane, tenant = string.match(place, "^(%a+)|(.*)$")
  local amount, virtual_time = tokens / weight_of(tenant), tonumber(call("HGET", prefix .. "virtual_time", lane) or 0)
  for _, key in ipairs({ prefix .. "flows:" .. lane, prefix .. "debt:" .. lane }) do
    local paid = tonumber(call("ZSCORE", key, tenant) or nil)
    if paid then
      call("ZADD", key, math.max(paid + amount, math.min(paid, virtual_time)), tenant)
      return
    end
  end
end

writers[#writers + 1] = function()
  for place, tokens in pairs(corrections) do
    move_in_virtual_time(place, tokens)
  end
end
