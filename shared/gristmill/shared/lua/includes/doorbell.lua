-- doorbell: wake an idle worker, which blocks on this list.

local MAX_DOORBELL_TOKENS = 4

local function ring_doorbell()
  if call("LLEN", prefix .. "doorbell") < MAX_DOORBELL_TOKENS then
    call("LPUSH", prefix .. "doorbell", "1")
  end
end
