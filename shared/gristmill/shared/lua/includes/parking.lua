-- parking: set waiting ids aside that the claiming worker may not have. Two reasons: "batch:<batch>", the batch is
-- paused; "facts:<name>,<name>", a worker must understand these facts. Parked ids are ordered by age. A claim that may
-- have one puts it back to the front of its lane, unless an older one waits there.

-- Return the names of the facts that a worker must understand, joined by commas.
local function required_facts(header)
  local names = {}
  for name in string.gmatch(header.facts, "|!([%l%d_]+)=") do
    names[#names + 1] = name
  end
  return table.concat(names, ",")
end

local function parked_key(reason)
  return key_of("parked:" .. reason, "ZCARD")
end

local function forget_if_empty(reason)
  if call("EXISTS", parked_key(reason)) == 0 then
    call("SREM", prefix .. "parked", reason)
    call("SREM", prefix .. "parked_claimable", reason)
  end
end

-- Forget an id that has ended, if it was parked.
local function unpark(id, header)
  if call("EXISTS", prefix .. "parked") == 0 then
    return
  end
  for _, reason in ipairs({ "batch:" .. header.batch, "facts:" .. required_facts(header) }) do
    if call("ZREM", parked_key(reason), id) == 1 then
      forget_if_empty(reason)
    end
  end
end
