-- leases: notice that Redis was away, and close the lease of a worker.

-- A pause of all beats longer than four fifths of a lease means that Redis was away, not the workers. Every worker then gets one
-- lease to come back before any is reaped.
local function note_beat(lease_ms, time_ms)
  local last_ms = tonumber(call("HGET", prefix .. "times", "last_beat_ms") or time_ms)
  if time_ms - last_ms > lease_ms * 0.8 then
    call("HSET", prefix .. "times", "grace_until_ms", integer(time_ms + lease_ms))
  end
  call("HSET", prefix .. "times", "last_beat_ms", integer(time_ms))
end

local function close_lease(worker)
  call("ZREM", prefix .. "workers", worker)
  call("UNLINK", prefix .. "worker:" .. worker, prefix .. "last_claim:" .. worker, prefix .. "abort:" .. worker)
end
