-- keep: note how many bytes the storage keeps of a file, unless its tenant's quota is reached.
--
-- KEYS[1]  prefix
-- ARGV     tenant, id, bytes, quota of the tenant in bytes (0: none)
-- Returns  0, or the bytes that the tenant keeps: the quota is too small for more, and nothing was noted.
--          A file without a record changes nothing: it was deleted, and nobody would free its bytes.
--          Sent twice, the second changes nothing; fewer bytes than before are always noted

local key, call = KEYS[1] .. "storage:" .. ARGV[1], redis.call
local id, bytes, quota = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

if call("EXISTS", KEYS[1] .. "file:" .. id) == 0 then
  return 0
end
local more = bytes - (call("HGET", key, id) or 0)
local total = tonumber(call("HGET", key, "total") or 0)
if quota > 0 and more > 0 and total + more > quota then
  return math.max(total, 1)
end
call("HSET", key, id, ARGV[3])
call("HINCRBY", key, "total", string.format("%.0f", more))
return 0
