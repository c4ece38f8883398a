-- status: where each request is. Reads only.
--
-- KEYS[1]  prefix
-- ARGV     id...
-- Returns  {state, worker or ""} for each: queued, delayed, running, done or unknown

local states = {}
for i, id in ipairs(ARGV) do
  local worker = holder_of(id)
  local state = "unknown"
  if call("EXISTS", prefix .. "result:" .. id) == 1 then
    state = "done"
  elseif worker then
    state = "running"
  elseif call("ZSCORE", prefix .. "delayed", id) then
    state = "delayed"
  elseif call("EXISTS", prefix .. "request:" .. id) == 1 then
    state = "queued"
  end
  states[i] = { state, worker or "" }
end
return states
