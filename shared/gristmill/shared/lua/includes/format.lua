-- format: refuse a queue whose keys another format of this protocol wrote. docs/protocol.md says when it changes.

-- Return an error if the queue has another format, else nil. An empty queue gets this format if `may_write`.
local function format_error(may_write)
  if format_of_queue == FORMAT_OF_KEYS then
    return nil
  elseif format_of_queue then
    return redis.error_reply("FORMAT " .. format_of_queue)
  end
  key_of("format", "STRLEN") -- a value of another type reads as none
  local was_moved = call("SISMEMBER", prefix .. "wrong_types", "format") == 1
  if not was_moved and call("HEXISTS", prefix .. "stats", "submitted") == 1 then
    return redis.error_reply("FORMAT 0") -- versions before 0.1.0 wrote none
  elseif was_moved or may_write then
    call("SET", prefix .. "format", FORMAT_OF_KEYS)
  end
end
