-- commit: write what a steward has done for a batch, in one step.
--
-- KEYS[1]  prefix
-- ARGV     1  batch                        5  record (JSON)
--          2  token of the lease           6  checkpoint (JSON)
--          3  number of this commit        7  ttl_s; 0 while the batch has not ended
--          4  tenant                       8  work that is due next; "" for none
--          9  number of parts
--          10... parts (JSON); then for each new file: id, record (JSON), expires_at (seconds)
-- Returns  1, or 0 if this steward no longer has the lease: then nothing was written. The same commit
--          sent again returns 1 and changes nothing
-- Keeps    one row per line: rows, counts and checkpoint change together, and only the holder of the
--          lease changes them

local prefix, call = KEYS[1], redis.call
local batch, token, number, tenant, record, checkpoint, ttl_s, next_work, num_parts = unpack(ARGV, 1, 9)
local info_key, parts_key = prefix .. "batch_record:" .. batch, prefix .. "batch_parts:" .. batch

local name = number .. "|" .. token -- another steward's commit of the same number is not this one
if call("HGET", info_key, "commit") == name then
  return 1
end
if call("GET", prefix .. "batch_lease:" .. batch) ~= token then
  return 0
end
call("HSET", info_key, "commit", name, "record", record, "checkpoint", checkpoint)
call("HDEL", info_key, "failures", "problem")
local first_file = 10 + num_parts
local storage_key = prefix .. "storage:" .. tenant
local function keep(id, bytes)
  call("HINCRBY", storage_key, id, bytes)
  call("HINCRBY", storage_key, "total", bytes)
end
for i = 10, first_file - 1 do
  call("RPUSH", parts_key, ARGV[i])
  keep(batch, cjson.decode(ARGV[i]).size)
end
if first_file <= #ARGV then -- the files take the place of the parts
  keep(batch, string.format("%.0f", 0 - (call("HGET", storage_key, batch) or 0)))
  call("HDEL", storage_key, batch)
end
for i = first_file, #ARGV, 3 do
  call("SET", prefix .. "file:" .. ARGV[i], ARGV[i + 1])
  keep(ARGV[i], cjson.decode(ARGV[i + 1]).bytes)
  call("ZADD", prefix .. "files:" .. tenant, 0, ARGV[i])
  call("ZADD", prefix .. "files_expiring", ARGV[i + 2], ARGV[i])
end
local time = call("TIME") -- this batch is due after those that are due already
for _, work in ipairs({ "steps", "files", "webhooks" }) do
  local due_key = prefix .. "batches_due:" .. work .. ":" .. tenant
  if work == next_work then
    call("ZADD", due_key, time[1] .. "000", batch)
    call("ZADD", prefix .. "steward_time:" .. work, "NX", 0, tenant)
  else
    call("ZREM", due_key, batch)
  end
end
if tonumber(ttl_s) > 0 then
  call("SREM", prefix .. "batches_open:" .. tenant, batch)
  call("EXPIRE", info_key, ttl_s)
  call("EXPIRE", parts_key, ttl_s)
end
return 1
