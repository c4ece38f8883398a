-- purge: delete dead letters; their results stay. Sent twice, the second deletes nothing.
--
-- KEYS[1]  prefix
-- ARGV     dead id...
-- Returns  how many there were
-- Keeps    7

call("HDEL", prefix .. "dead_letter_info", unpack(ARGV))
return call("ZREM", prefix .. "dead_letters", unpack(ARGV))
