-- deregister: close the lease of a worker that holds nothing.
--
-- KEYS[1]  prefix
-- ARGV     worker
-- Returns  1, or 0 if it still holds requests or inbox elements (then nothing changes)
-- Keeps    5

local worker = ARGV[1]
if call("EXISTS", key_of("in_flight:" .. worker, "HLEN"), key_of("admitting:" .. worker, "HLEN")) > 0 then
  return 0
end
close_lease(worker)
return 1
