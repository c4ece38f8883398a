-- purge: delete dead letters; their results stay. Sent twice, the second deletes nothing.
--
-- KEYS[1]  prefix
-- ARGV     dead id...
-- Returns  how many there were
-- Keeps    7

call("HDEL", prefix .. "deadinfo", unpack(ARGV))
return call("ZREM", prefix .. "dead", unpack(ARGV))
