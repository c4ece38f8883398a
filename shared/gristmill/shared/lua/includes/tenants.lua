-- tenants: the weight of each tenant, and the share of max_tokens that its requests were seen to generate.

local MIN_WEIGHT, MAX_WEIGHT = 1 / 1000, 1000
local MAX_TENANTS = 10000 -- whose debt or output share is remembered

local weights, output_shares = {}, {} -- of the tenants that this script has read

-- Read weights and output shares of flows in one go; an unknown output share is 1.
local function read_tenants(flows)
  local names = {}
  for _, flow in ipairs(flows) do
    if not output_shares[flow.name] then
      names[#names + 1] = flow.name
    end
  end
  if #names > 0 then
    local seen_weights = call("HMGET", prefix .. "tenant_weights", unpack(names))
    local seen_shares = call("HMGET", prefix .. "tenant_output_shares", unpack(names))
    for i, name in ipairs(names) do
      local weight = tonumber(seen_weights[i] or 1)
      -- A weight that makes no sense counts as 1. Beyond the bounds virtual time would lose the costs of others.
      weights[name] = weight and weight > 0 and math.max(MIN_WEIGHT, math.min(weight, MAX_WEIGHT)) or 1
      output_shares[name] = tonumber(seen_shares[i] or 1)
    end
  end
end

local function weight_of(tenant)
  if not weights[tenant] then
    read_tenants({ { name = tenant } })
  end
  return weights[tenant]
end

local function output_share_of(tenant)
  if not output_shares[tenant] then
    read_tenants({ { name = tenant } })
  end
  return output_shares[tenant]
end

-- Return the tokens that a request is expected to take, by what was seen of its tenant.
local function expected_cost(header)
  return bounded_cost(math.floor(header.prompt_tokens + header.max_tokens * output_share_of(header.tenant)))
end
