-- enqueue: put an id where it waits.
--
-- A position never changes while a request waits, and time is a part of each position, so nothing starves.

-- Credit of a waiting request under sjf: 16,000 tokens pass new requests of 400 after a quarter of an hour.
local CREDIT_TOKENS_PER_MS = 16 / 1000
-- A group of one prompt prefix takes newcomers in, ahead of requests in between, until it is so large or so old.
local MAX_GROUP, MAX_GROUP_MS, MAX_GROUPS = 256, 60000, 10000
-- Tokens that a new flow starts behind the waiting ones, so flows that start together keep their order.
local STEP_BEHIND = 0.001

-- Start a group of one prompt prefix; returns its position. No two groups begin in one ms, or they would mix.
local function start_group(groups_key, enqueued_ms)
  local position = math.max(enqueued_ms, tonumber(call("HGET", groups_key, "last") or 0) + 1)
  if call("HLEN", groups_key) >= MAX_GROUPS then
    call("DEL", groups_key) -- groups begin again; no request is lost by that
  end
  call("HSET", groups_key, "last", integer(position))
  return position
end

-- Requests of one prompt prefix stand together, where the first of their group came.
local function group_position(header, lane, flow)
  local _, prompt_prefix = string.match(header.record, MODEL_AND_PREFIX)
  if not prompt_prefix or prompt_prefix == "" then
    return tonumber(header.enqueued_ms)
  end
  local groups_key, group = prefix .. "prefix_groups", lane .. "|" .. flow .. "|" .. prompt_prefix
  local position, size = string.match(call("HGET", groups_key, group) or "", "^(%d+)|(%d+)$")
  if not position or tonumber(size) >= MAX_GROUP or header.enqueued_ms - position > MAX_GROUP_MS then
    position, size = start_group(groups_key, header.enqueued_ms), 0
  end
  call("HSET", groups_key, group, integer(position) .. "|" .. integer(size + 1))
  call("PEXPIRE", groups_key, MAX_GROUP_MS * 2)
  return position + size / 4096 -- a double has room for this beside a time in ms
end

-- Kind of key -> the position of a request in it.
local POSITIONS = {
  pending_sjf = function(header)
    return header.enqueued_ms * CREDIT_TOKENS_PER_MS + expected_cost(header)
  end,
  pending_deadline = function(header)
    local in_a_day = header.enqueued_ms + DAY_MS -- a far deadline is no worse than none
    return header.deadline_ms > 0 and math.min(header.deadline_ms, in_a_day) or in_a_day
  end,
  pending_prefix = group_position,
}

-- Let a flow take part in its lane, from the lane's virtual time or from what the flow still owes.
local function start_flow(lane, flow)
  local flows_key = prefix .. "flows:" .. lane
  if call("ZSCORE", flows_key, flow) then
    return
  end
  if (lane == "normal" or lane == "low") and call("EXISTS", flows_key) == 0 then
    call("HSET", prefix .. "times", lane .. "_served_ms", integer(now_ms()))
  end
  local virtual_time = tonumber(call("HGET", prefix .. "virtual_time", lane) or 0) + STEP_BEHIND
  call("HSET", prefix .. "virtual_time", lane, virtual_time)
  local debt = tonumber(call("ZSCORE", prefix .. "debt:" .. lane, flow) or 0)
  call("ZADD", flows_key, math.max(virtual_time, debt), flow)
end

-- Put an id where it waits. A suspect stays a suspect, from wherever it comes back.
local function enqueue(id, header, crashes, is_at_front)
  local lane, flow, kind = place_of(header, crashes)
  local key, num_new = place_key(lane, flow, kind), 0
  if kind == "pending" then
    num_new = call(is_at_front and "LPUSH" or "RPUSH", key, id)
  else
    num_new = call("ZADD", key, POSITIONS[kind](header, lane, flow), id)
  end
  if num_new == 1 then -- the list was empty, or the id is new in the ordered set: then the flow may be new
    start_flow(lane, flow)
  end
end
