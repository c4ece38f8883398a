-- charges: take an id from its holder, and correct what its tenant was charged when it was claimed.

local corrections = {} -- "lane|tenant" -> tokens to add to what the tenant has paid

-- Charge the tokens that a request took in the end, instead of those that its claim charged.
-- `owner` is the value of the id's field in the hash of this name.
local function correct_charge(owner, tokens)
  local cost, place = string.match(owner, "|(%d+)|(.*)$")
  if cost then
    corrections[place] = (corrections[place] or 0) + tokens - cost
  end
end

-- Take an id from its holder and charge nothing for it; returns the worker, or false. `cost` is the header's.
local function disown(id, cost)
  local worker, owner = holder_of(id)
  if worker then
    call("HDEL", prefix .. "owner", id)
    correct_charge(owner, 0)
    if call("HDEL", prefix .. "in_flight:" .. worker, id) == 1 then
      count_in_flight(cost, -1)
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
