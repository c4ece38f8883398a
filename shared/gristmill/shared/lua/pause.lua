-- pause: let no claim take from the queue, or from a batch. What runs ends, and submits are accepted.
--
-- KEYS[1]  prefix
-- ARGV     scope ("queue", or "batch:" and the batch), note: a JSON object with `by` and `reason`
-- Returns  1; 0 if it was paused already or the batch has completed, which changes nothing; an error INVALID for another scope or note
-- Keeps    7 (a batch's field goes when the batch completes or is resumed)

local scope, note = ARGV[1], ARGV[2]
if scope ~= "queue" and not string.match(scope, "^batch:[%w._:/@=+-]+$") then
  return redis.error_reply("INVALID scope: use queue, or batch: and the name of a batch")
end
local is_json, fields = pcall(cjson.decode, note)
if not is_json or type(fields) ~= "table" or not fields.by or string.sub(note, 1, 1) ~= "{" then
  return redis.error_reply("INVALID note: use a JSON object with by and reason")
end
if call("HEXISTS", key_of(scope, "HLEN"), "completed_ms") == 1 then -- the scope of a batch is the rest of its key
  return 0
end
return call("HSETNX", prefix .. "pauses", scope, '{"at_ms":' .. integer(now_ms()) .. "," .. string.sub(note, 2))
