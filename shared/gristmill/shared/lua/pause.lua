-- pause: let no claim take from the queue, or from a batch. What runs ends, and submits are accepted.
--
-- KEYS[1]  prefix
-- ARGV     scope ("queue", or "batch:" and the batch), note: a JSON object with `by` and `reason`, and with `call`, a name of this
--          call that makes a repeat return the same
-- Returns  1; 0 if it was paused already or the batch has completed, which changes nothing; an error INVALID for
--          another scope or note
-- Keeps    7 (a batch's field goes when the batch completes or is resumed)

local wrong_format = format_error(true)
if wrong_format then
  return wrong_format
end
local scope, note = ARGV[1], ARGV[2]
if scope ~= "queue" and not string.match(scope, "^batch:[%w._:/@=+-]+$") then
  return redis.error_reply("INVALID scope: use queue, or batch: and the name of a batch")
end

-- Return whether a text is UTF-8, without surrogates and overlong forms, or no reader of JSON takes it.
local function is_utf8(text)
  for _, form in ipairs({ "[\194-\223][\128-\191]", "\224[\160-\191][\128-\191]", "\237[\128-\159][\128-\191]",
    "[\225-\236\238\239][\128-\191][\128-\191]", "\240[\144-\191][\128-\191][\128-\191]",
    "[\241-\243][\128-\191][\128-\191][\128-\191]", "\244[\128-\143][\128-\191][\128-\191]" }) do
    text = string.gsub(text, form, " ")
  end
  return not string.find(text, "[\128-\255]")
end

-- Return the note as it is stored, with the time, or nil if it is none.
local function checked_note()
  local is_json, fields = pcall(cjson.decode, note)
  if not is_json or type(fields) ~= "table" or type(fields.by) ~= "string" or not is_utf8(note)
    or type(fields.reason or "") ~= "string" or string.find(note, "^%s*{") == nil then
    return nil
  end
  fields.at_ms = now_ms()
  local is_encoded, stored = pcall(cjson.encode, fields) -- refuses NaN, which cjson.decode takes
  return is_encoded and stored, fields.call
end

-- Return whether this call has paused it before: its reply was lost.
local function is_repeat(call_name)
  local is_json, present = pcall(cjson.decode, call("HGET", prefix .. "pauses", scope))
  return is_json and type(present) == "table" and call_name ~= nil and present.call == call_name
end

local stored, call_name = checked_note()
if not stored then
  return redis.error_reply("INVALID note: use a JSON object with the texts by and reason, in UTF-8")
end
if call("HEXISTS", key_of(scope, "HLEN"), "completed_ms") == 1 then -- the scope of a batch is the rest of its key
  return 0
end
if call("HSETNX", prefix .. "pauses", scope, stored) == 0 then
  return is_repeat(call_name) and 1 or 0
end
call("SREM", prefix .. "parked_claimable", scope)
return 1
