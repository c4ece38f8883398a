-- due: return the batches that are due and that no steward holds. Those of the tenant to which stewards gave
-- the least time come first; a tenant's own are longest due first.
--
-- KEYS[1]  prefix
-- ARGV     work (steps, files or webhooks), most batches of one tenant, most batches
-- Returns  tenant, batch...
-- Keeps    a tenant without work leaves `steward_time` once the others have caught up with it

local prefix, call = KEYS[1], redis.call
local work, max_a_tenant, max_batches = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local MAX_HELD = 100 -- batches of a tenant that stewards may hold before its free ones are found

local time_key = prefix .. "steward_time:" .. work
local served_ms = tonumber(call("ZSCORE", time_key, "*") or 0)
local time = call("TIME")
local now_ms = string.format("%.0f", time[1] * 1000 + math.floor(time[2] / 1000))
local found = {}

local function add_free_batches(tenant, due_key)
  local num_free = 0
  for _, batch in ipairs(call("ZRANGE", due_key, "-inf", now_ms, "BYSCORE", "LIMIT", 0, MAX_HELD + max_a_tenant)) do
    if num_free < max_a_tenant and call("EXISTS", prefix .. "batch_lease:" .. batch) == 0 then
      num_free = num_free + 1
      found[#found + 1] = tenant
      found[#found + 1] = batch
    end
  end
end

local tenants = call("ZRANGE", time_key, 0, -1, "WITHSCORES")
for i = 1, #tenants, 2 do
  local tenant, used_ms = tenants[i], tonumber(tenants[i + 1])
  local due_key = prefix .. "batches_due:" .. work .. ":" .. tenant
  if #found >= 2 * max_batches then
    break
  elseif tenant ~= "*" and call("TYPE", due_key).ok == "zset" then -- another type must not stop the other tenants
    add_free_batches(tenant, due_key)
  elseif tenant ~= "*" and used_ms <= served_ms then
    call("ZREM", time_key, tenant)
  end
end
return found
