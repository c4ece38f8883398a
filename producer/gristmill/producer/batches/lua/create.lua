-- create: list a new batch and give it to the stewards.
--
-- KEYS[1]  prefix
-- ARGV     batch, tenant, record (JSON), most batches of this tenant that may be unfinished (0: any)
-- Returns  1, or 0 if the tenant is at that limit; the same batch again is 1
--
--   batchinfo:<batch>    HASH  record and progress (JSON), runs, and what is told to it from outside:
--                              cancelling_at, announced_at (seconds); after a failed step, until the next
--                              commit: failures (how many), problem (the last one)
--   batches:<tenant>     ZSET  ids of its batches, all scores 0
--   batches_open:<tenant> SET  those that have not ended
--   batches_active       ZSET  batches that a steward has work on -> ms at which it is due
--   steward_bell         LIST  a few tokens that wake stewards

local prefix, call = KEYS[1], redis.call
local batch, tenant, record, max_open = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

if max_open > 0 and call("SCARD", prefix .. "batches_open:" .. tenant) >= max_open then
  return 0
end
call("HSETNX", prefix .. "batchinfo:" .. batch, "record", record)
call("ZADD", prefix .. "batches:" .. tenant, 0, batch)
call("SADD", prefix .. "batches_open:" .. tenant, batch)
call("ZADD", prefix .. "batches_active", "NX", 0, batch)
call("LPUSH", prefix .. "steward_bell", "1")
call("LTRIM", prefix .. "steward_bell", 0, 3)
return 1
