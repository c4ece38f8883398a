-- deliveries: how often an id was claimed, and which worker holds it now.

local function parse_attempts(text)
  if not text then
    return 0, 0, 0
  end
  local deliveries, uncounted, crashes = string.match(text, "^(%d+)|(%d+)|(%d+)$")
  return tonumber(deliveries), tonumber(uncounted), tonumber(crashes)
end

local function attempts_of(id)
  return parse_attempts(call("HGET", prefix .. "attempts", id))
end

local function set_attempts(id, deliveries, uncounted, crashes)
  call("HSET", prefix .. "attempts", id, deliveries .. "|" .. uncounted .. "|" .. crashes)
end

-- Return the worker that holds an id, or false; and the whole value of its field in `owner`.
local function holder_of(id)
  local owner = call("HGET", prefix .. "owner", id)
  return owner and string.match(owner, "^[^|]*"), owner
end

-- Return whether a fence names the claim that a worker holds. `delivery` is the number in in_flight:<worker>. A fence is
-- "delivery" or better "delivery@enqueued_ms@digest", which tells the request from another one of the same id, whose
-- deliveries have the same numbers. Without a header the record is gone.
local function is_current(delivery, fence, header)
  if not header then
    return delivery == string.match(fence, "^%d+")
  end
  return delivery and (fence == delivery .. "@" .. header.enqueued_ms .. "@" .. header.digest or fence == delivery)
end

-- Return the attempt that runs, or else the last one; 0 if the request never ran.
local function attempt_of(id)
  local deliveries, uncounted = attempts_of(id)
  local worker = holder_of(id)
  if worker then
    deliveries = tonumber(call("HGET", prefix .. "in_flight:" .. worker, id)) or deliveries
  end
  return deliveries - uncounted
end
