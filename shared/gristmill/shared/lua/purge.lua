-- purge: delete dead letters; their results stay. Sent twice, the second deletes nothing.
--
-- KEYS[1]  prefix
-- ARGV     dead id...
-- Returns  how many there were
-- Keeps    7

local num_purged = drop_dead_letters(ARGV)
flush(0, now_ms())
return num_purged
