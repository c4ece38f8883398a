#!lua flags=allow-oom
-- fence: cancel a batch and take its lease, so that no steward writes for it any more. A purge calls it.
--
-- KEYS[1]  prefix
-- ARGV     batch, token, seconds until another may take the lease
-- Returns  1; 0 if there is no such batch, which changes nothing

local prefix, call = KEYS[1], redis.call
local info_key = prefix .. "batch_record:" .. ARGV[1]
if call("EXISTS", info_key) == 0 then
  return 0
end
call("HSETNX", info_key, "cancelling_at", call("TIME")[1])
call("SET", prefix .. "batch_lease:" .. ARGV[1], ARGV[2], "EX", ARGV[3])
return 1
