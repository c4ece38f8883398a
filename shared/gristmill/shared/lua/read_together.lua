-- read_together: run commands that only read, all of them in one instant. Snapshots of a queue use it.
--
-- KEYS[1]  prefix; what the commands read begins with it
-- ARGV     for each command: how many words, then the words
-- Returns  their replies

local replies, position = {}, 1
while position <= #ARGV do
  local last = position + tonumber(ARGV[position])
  replies[#replies + 1] = call(unpack(ARGV, position + 1, last))
  position = last + 1
end
return replies
