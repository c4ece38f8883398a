-- reap: make what dead workers held claimable again, as suspects. Every beat calls it.
--
-- KEYS[1]  prefix
-- ARGV     limit (ids a call), result_ttl_ms
-- Returns  worker, num_ids for each worker whose lease had ended; a worker with more than the limit
--          comes again at the next call. Nothing while the grace after an outage of Redis lasts.
-- Keeps    2, 5, 7 (bounded work)

local limit, time_ms = tonumber(ARGV[1]), now_ms()
local grace_until_ms = tonumber(call("HGET", prefix .. "times", "grace_until_ms") or 0)
if time_ms < grace_until_ms then
  return {}
end
local reply = {}

-- Return what a dead letter says of the death: the worker, and what it served.
local function evidence_of(worker)
  local facts, named = call("HGETALL", key_of("worker:" .. worker, "HLEN")), { worker = worker, cause = "lease expired" }
  for i = 1, #facts, 2 do
    if facts[i] ~= "body_schemas" then -- some 40 KB that say nothing of a death
      named[facts[i]] = facts[i + 1]
    end
  end
  return cjson.encode(named)
end

-- Give back what a dead worker had not admitted. Any of these elements may have killed it, so claims take them alone from
-- now on. One that was taken alone is the cause, and becomes a dead letter.
local function suspect_elements(worker)
  local token = suspect_token(worker)
  if token then
    local element = call("HGET", prefix .. "admitting:" .. worker, token)
    dead_letter_element("inbox-" .. token, "engine_killed", evidence_of(worker), 2, element, time_ms)
    call("HDEL", prefix .. "admitting:" .. worker, token)
  end
  return_elements(worker, "inbox_suspects")
end

for _, worker in ipairs(call("ZRANGE", prefix .. "workers", 0, time_ms, "BYSCORE", "LIMIT", 0, 10)) do
  suspect_elements(worker)
  local num_moved = give_back_as_suspects(worker, limit, evidence_of(worker), ARGV[2], time_ms)
  limit = limit - num_moved
  reply[#reply + 1], reply[#reply + 2] = worker, num_moved
  if call("EXISTS", prefix .. "in_flight:" .. worker) == 0 then
    close_lease(worker)
    count("reaped_workers", 1)
  end
  if limit <= 0 then
    break
  end
end
if #reply > 0 then
  ring_doorbell()
end
flush(ARGV[2], time_ms)
return reply
