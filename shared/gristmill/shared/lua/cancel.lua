-- cancel: end requests, wherever they are, with no worker alive.
--
-- KEYS[1]  prefix
-- ARGV     result_ttl_ms, id...
-- Returns  a code for each: queued or running (it was, and is cancelled now), done (terminal
--          before), unknown
-- Keeps    2, 4

local wrong_format = format_error(false)
if wrong_format then
  return wrong_format
end
local time_ms = now_ms()
local codes = {}
for i = 2, #ARGV do
  local id = ARGV[i]
  local code = finish_anywhere(id, "cancelled", "cancelled by a client", ARGV[1], time_ms)
  if not code then
    code = call("EXISTS", prefix .. "result:" .. id) == 1 and "done" or "unknown"
  end
  codes[#codes + 1] = code
end
flush(ARGV[1], time_ms)
return codes
