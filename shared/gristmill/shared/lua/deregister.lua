-- deregister: close the lease of a worker that holds no request. What it took from the inbox and did not admit goes back.
--
-- KEYS[1]  prefix
-- ARGV     worker
-- Returns  1, or 0 if it still holds requests (then nothing changes)
-- Keeps    5

local worker = ARGV[1]
if call("EXISTS", key_of("in_flight:" .. worker, "HLEN")) > 0 then
  return 0
end
return_elements(worker, suspect_token(worker) and "inbox_suspects" or "inbox")
close_lease(worker)
return 1
