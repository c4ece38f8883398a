#!lua flags=allow-oom
-- fence: cancel a batch and take its lease, so that no steward writes for it any more. A purge calls it.
--
-- KEYS[1]  prefix
-- ARGV     batch, token, seconds until another may take the lease
-- Returns  1; 2 if a steward had the lease; 0 if there is no such batch, which changes nothing

local prefix, call = KEYS[1], redis.call
local info_key = prefix .. "batch_record:" .. ARGV[1]
if call("EXISTS", info_key) == 0 then
  return 0
end
call("HSETNX", info_key, "cancelling_at", call("TIME")[1])
local lease_key = prefix .. "batch_lease:" .. ARGV[1]
local held = call("GET", lease_key)
call("SET", lease_key, ARGV[2], "EX", ARGV[3])
if held and string.sub(held, 1, 6) ~= "purge-" then
  return 2
end
return 1
