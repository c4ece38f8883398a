-- requeue: submit a dead letter as a new request that names the old one; the old record stands.
--
-- KEYS[1]  prefix
-- ARGV     dead id, new id
-- Returns  accepted; queued or done (it was requeued under this new id before); missing (no such
--          dead letter, or one that was never a request)
-- Keeps    1, 2

local wrong_format = format_error(false)
if wrong_format then
  return wrong_format
end
local id, new_id = ARGV[1], ARGV[2]
if call("EXISTS", prefix .. "request:" .. new_id) == 1 then
  return "queued"
end
if call("EXISTS", prefix .. "result:" .. new_id) == 1 then
  return "done"
end
local info = call("HGET", prefix .. "dead_letter_info", id)
local record = info and string.match(info, "^[^\n]*\n(1|.*)$")
if not record then
  return "missing"
end
local header = header_of(record)
if not header.is_readable then
  return "missing"
end
local payload = string.match(record, "^[^\n]*\n(.*)$")
local model, prompt_prefix = string.match(record, MODEL_AND_PREFIX)
local tail = table.concat({ "", integer(header.prompt_tokens), integer(header.max_tokens), header.max_attempts, "", header.endpoint,
  model, prompt_prefix, id }, "|") .. header.facts
local time_ms = now_ms()
local request = { id = new_id, tenant = header.tenant, priority = header.priority, deadline_in_ms = 0, delay_ms = 0,
  digest = header.digest, tail = tail, payload = payload }
local code = accept(request, false, time_ms)
drop_dead_letters({ id })
count("requeued", 1)
ring_doorbell()
flush(0, time_ms)
return code
