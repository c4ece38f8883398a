-- resume: let claims take again from the queue, or from a batch.
--
-- KEYS[1]  prefix
-- ARGV     scope, as for pause
-- Returns  1; 0 if it was not paused
-- Keeps    -

local wrong_format = format_error(false)
if wrong_format then
  return wrong_format
end
local was_paused = end_pause(ARGV[1])
if was_paused == 1 then
  ring_doorbell()
end
return was_paused
