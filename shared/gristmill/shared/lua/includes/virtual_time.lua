-- virtual_time: charge flows for what a claim took of them. Part of claim.
--
-- It is start-time fair queueing (Goyal, Vin and Cheng 1996): the virtual time of a lane is that of the flow that was
-- served last.

-- Advance the virtual time of a lane, in the claim only; flows whose requests were all put back do not count.
local function advance(claim, lane, flows)
  local reached = flows[1].virtual_time
  for _, flow in ipairs(flows) do
    reached = flow.cost > 0 and flow.virtual_time or reached
  end
  local before = claim.virtual_times[lane] or tonumber(call("HGET", prefix .. "virtual_time", lane) or 0)
  claim.virtual_times[lane] = math.max(reached, before)
  return claim.virtual_times[lane]
end

-- Charge each flow for what was taken from it. An empty flow keeps its debt until virtual time has passed it.
-- Without that, a tenant that submits little at a time would never pay.
local function charge(claim, lane, flows)
  local waiting, debts, reached = {}, {}, advance(claim, lane, flows)
  for _, flow in ipairs(flows) do
    local finish_time = flow.virtual_time
    if flow.cost > 0 and flow.name ~= "*" then
      finish_time = finish_time + flow.cost / weight_of(flow.name)
    end
    local into = flow.has_more and waiting or debts
    if flow.has_more or finish_time > reached then
      into[#into + 1], into[#into + 2] = finish_time, flow.name
    end
  end
  if #waiting > 0 then
    call("ZADD", prefix .. "flows:" .. lane, unpack(waiting))
  end
  if #debts > 0 then
    call("ZADD", prefix .. "debt:" .. lane, unpack(debts))
  end
end

-- Write the virtual time of a lane, and forget the debts that it has passed.
local function write_virtual_time(claim, lane)
  local virtual_time, debt_key = claim.virtual_times[lane], prefix .. "debt:" .. lane
  if not virtual_time then
    return
  end
  call("HSET", prefix .. "virtual_time", lane, virtual_time)
  if call("EXISTS", prefix .. "flows:" .. lane) == 0 then
    call("DEL", debt_key) -- nobody waits, so all start level again
    return
  end
  call("ZREMRANGEBYSCORE", debt_key, "-inf", virtual_time)
  local too_many = call("ZCARD", debt_key) - MAX_TENANTS
  if too_many > 0 then
    call("ZPOPMIN", debt_key, too_many)
  end
end
