-- lanes: in which order requests wait, and under which key: lane, flow and kind.
--
-- The kind of a key is its first word. Each order has one; docs/protocol.md describes the orders.

local DEFAULT_AGEING_MS = 10000 -- of a queue whose workers have never set one
local KINDS = { "pending", "pending_sjf", "pending_deadline", "pending_prefix" } -- the first is a LIST
local KIND_OF_ORDER = { sjf = "pending_sjf", deadline = "pending_deadline", prefix = "pending_prefix" }

-- Return the queue's scheduling; it is read once a script. The order is fcfs, priority, sjf, deadline, prefix or
-- fair. "fair+sjf" and its like are fair between tenants and sjf inside a tenant's share.
local known_scheduling
local function scheduling()
  if not known_scheduling then
    local fields = call("HMGET", prefix .. "scheduling", "order", "ageing_ms", "is_mixed")
    local order = fields[1] or "fair"
    known_scheduling = { order = order, ageing_ms = tonumber(fields[2] or nil) or DEFAULT_AGEING_MS, is_mixed = fields[3],
      has_lanes = order ~= "fcfs", is_fair = string.sub(order, 1, 4) == "fair",
      kind = KIND_OF_ORDER[string.match(order, "[^+]+$")] or "pending" }
  end
  return known_scheduling
end

-- Return the kind of key in which the ids of a lane wait. Suspects are always first come first served.
local function kind_of(lane)
  return lane == "suspect" and "pending" or scheduling().kind
end

-- Return lane, flow and kind of the key in which a request waits. Suspects wait in a lane of their own.
local function place_of(header, crashes)
  if crashes > 0 then
    return "suspect", header.tenant, "pending"
  end
  local now = scheduling()
  return now.has_lanes and header.priority or "normal", now.is_fair and header.tenant or "*", now.kind
end

local function place_key(lane, flow, kind)
  return key_of(kind .. ":" .. lane .. ":" .. flow, kind == "pending" and "LLEN" or "ZCARD")
end

local function place_keys(lane, flow)
  local keys = {}
  for i, kind in ipairs(KINDS) do
    keys[i] = place_key(lane, flow, kind)
  end
  return keys
end
