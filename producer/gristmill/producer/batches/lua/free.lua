#!lua flags=allow-oom
-- free: note that the storage keeps nothing of a file or batch any more.
--
-- KEYS[1]  prefix
-- ARGV     tenant, id
-- Returns  nothing; sent twice, the second changes nothing

local key, call = KEYS[1] .. "storage:" .. ARGV[1], redis.call
local bytes = call("HGET", key, ARGV[2])
if not bytes then
  return
end
call("HDEL", key, ARGV[2])
if call("HINCRBY", key, "total", string.format("%.0f", 0 - bytes)) == 0 and call("HLEN", key) == 1 then
  call("DEL", key)
end
