-- format: refuse a queue whose keys another format of this protocol wrote. docs/protocol.md says when it changes.

local FORMAT_OF_KEYS = "1"

-- Return an error if the queue has another format, else nil. An empty queue gets this format if `may_write`.
local function format_error(may_write)
  local format = call("GET", key_of("format", "STRLEN"))
  if format == FORMAT_OF_KEYS then
    return nil
  elseif format then
    return redis.error_reply("FORMAT " .. format)
  elseif call("HEXISTS", prefix .. "stats", "submitted") == 1 and call("SISMEMBER", prefix .. "wrong_types", "format") == 0 then
    return redis.error_reply("FORMAT 0") -- versions before 0.1.0 wrote none
  elseif may_write then
    call("SET", prefix .. "format", FORMAT_OF_KEYS)
  end
end
