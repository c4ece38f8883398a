-- create: list a new batch and make it due. A child is not listed and counts for no limit.
--
-- KEYS[1]  prefix
-- ARGV     batch, tenant, record (JSON), most batches of the tenant that have not ended (0: no limit),
--          checkpoint (JSON) of a child, or ""
-- Returns  1, or 0 if the tenant is at that limit; the same batch again returns 1
--
-- The keys of batches and files. A kind of work is steps, files or webhooks:
--
--   batch_record:<batch>   HASH    fields of commit.lua: record, checkpoint (JSON), commit ("number|token");
--                                  slices (begun so far); cancelling_at, announced_at (seconds);
--                                  after a failed slice, until the next commit: failures (a count), problem;
--                                  webhook_tries (a count)
--   batch_parts:<batch>    LIST    committed parts of its output (JSON)
--   batch_lease:<batch>    STRING  token of the steward that works on it; with a TTL
--   batches:<tenant>       ZSET    ids of the tenant's batches, all scores 0
--   batches_open:<tenant>  SET     ids of the tenant's batches that have not ended
--   batches_due:<work>:<tenant>  ZSET  batches whose next step is this kind of work -> ms at which it is due
--   steward_time:<work>    ZSET    tenants that need this kind of work -> ms that stewards gave them; a
--                                  tenant below `*`, the time of the last one served, counts as equal to it
--   steward_doorbell       LIST    up to 4 tokens; each wakes a steward
--   file:<file>            STRING  record of a file (JSON)
--   files:<tenant>         ZSET    ids of the tenant's files, all scores 0
--   storage:<tenant>       HASH    what the storage keeps for a tenant: a file -> bytes, a running batch -> bytes of
--                                  its parts, total -> their sum
--   idempotency:<tenant>:<key>  STRING  "digest|id" of what the call with this Idempotency-Key created; with a TTL
--   files_expiring         ZSET    ids of files -> second at which the file is deleted

local prefix, call = KEYS[1], redis.call
local batch, tenant, record, max_open, checkpoint = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]

if call("EXISTS", prefix .. "batch_record:" .. batch) == 1 then -- it may have ended: list it as open no more
  return 1
end
if max_open > 0 and call("SCARD", prefix .. "batches_open:" .. tenant) >= max_open then
  return 0
end
call("HSET", prefix .. "batch_record:" .. batch, "record", record)
if checkpoint ~= "" then
  call("HSET", prefix .. "batch_record:" .. batch, "checkpoint", checkpoint)
else
  call("ZADD", prefix .. "batches:" .. tenant, 0, batch)
  call("SADD", prefix .. "batches_open:" .. tenant, batch)
end
call("ZADD", prefix .. "batches_due:steps:" .. tenant, "NX", 0, batch)
call("ZADD", prefix .. "steward_time:steps", "NX", 0, tenant)
call("LPUSH", prefix .. "steward_doorbell", "1")
call("LTRIM", prefix .. "steward_doorbell", 0, 3)
return 1
