-- admit: turn an inbox element that this worker took into a request, or into a dead letter.
--
-- KEYS[1]  prefix
-- ARGV     worker, token, result_ttl_ms, "request", then the eight values of submit for one request
--          or: worker, token, result_ttl_ms, "garbage", id, evidence (JSON)
-- Returns  the code of submit; "dead_lettered"; or "gone" if the token was admitted before
-- Keeps    1, 6 (what cannot be read is kept)

local admitting_key = key_of("admitting:" .. ARGV[1], "HLEN")
local element = call("HGET", admitting_key, ARGV[2])
if not element then
  return "gone"
end
call("HDEL", admitting_key, ARGV[2])
local time_ms = now_ms()
local code = "dead_lettered"
if ARGV[4] == "request" then
  local request = {}
  read_request(request, 5)
  code = accept(request, false, time_ms)
  if code == "conflict" then
    code = "dead_lettered"
    dead_letter_element("inbox-" .. ARGV[2], "id_conflict", '{"id":"' .. ARGV[5] .. '"}', 0, element, time_ms)
  else
    ring_doorbell()
  end
else
  dead_letter_element(ARGV[5], "unreadable", ARGV[6], 0, element, time_ms)
end
flush(ARGV[3], time_ms)
return code
