-- charge: count time that stewards give a tenant.
--
-- KEYS[1]  prefix
-- ARGV     work (steps, files or webhooks), tenant, ms; "1" if the tenant is served now, "0" for a correction
-- Returns  nothing

local prefix, call = KEYS[1], redis.call
local work, tenant, ms, is_served = unpack(ARGV)
local time_key = prefix .. "steward_time:" .. work
local used_ms = tonumber(call("ZSCORE", time_key, tenant) or 0)
if is_served == "1" then
  used_ms = math.max(used_ms, tonumber(call("ZSCORE", time_key, "*") or 0))
  call("ZADD", time_key, used_ms, "*", used_ms + ms, tenant)
else
  call("ZADD", time_key, "XX", used_ms + ms, tenant)
end
