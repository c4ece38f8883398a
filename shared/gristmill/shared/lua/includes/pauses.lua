-- pauses: end the pause of a queue or of a batch.

-- Let claims take again; returns 1, or 0 if it was not paused. Claims find the parked ids by parked_claimable.
local function end_pause(scope)
  local was_paused = call("HDEL", key_of("pauses", "HLEN"), scope)
  if was_paused == 1 and call("EXISTS", prefix .. "parked:" .. scope) == 1 then
    call("SADD", prefix .. "parked_claimable", scope)
  end
  return was_paused
end
