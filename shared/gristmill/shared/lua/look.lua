#!lua flags=no-writes
-- look: run commands that only read, all of them in one instant. Not a verb: it stands alone, for the audit.
--
-- KEYS[1]  prefix; what the commands read begins with it
-- ARGV     for each command: how many words, then the words
-- Returns  their replies
local replies, position = {}, 1
while position <= #ARGV do
  local last = position + tonumber(ARGV[position])
  replies[#replies + 1] = redis.call(unpack(ARGV, position + 1, last))
  position = last + 1
end
return replies
