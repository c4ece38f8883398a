-- dead_letters: keep what could not be served, with its bytes. Invariants 6 and 7.

local DEAD_LETTERS = { max_number = 100000, max_bytes = 256 * 2 ^ 20,
  max_element_bytes = 2 ^ 20, num_kept_bytes = 65536 } -- a larger refused element is kept by its beginning

-- Delete dead letters; returns how many there were.
local function drop_dead_letters(ids)
  for _, id in ipairs(ids) do
    count("dead_letter_bytes", -call("HSTRLEN", prefix .. "dead_letter_info", id))
  end
  call("HDEL", prefix .. "dead_letter_info", unpack(ids))
  return call("ZREM", prefix .. "dead_letters", unpack(ids))
end

-- Delete the oldest dead letters until the others keep the caps; the newest one stays.
local function keep_dead_letter_caps(newest_bytes)
  local num_left = call("ZCARD", prefix .. "dead_letters")
  local num_bytes = tonumber(call("HGET", prefix .. "stats", "dead_letter_bytes") or 0) + counts.dead_letter_bytes
  while num_left > 1 and (num_left > DEAD_LETTERS.max_number or num_bytes > DEAD_LETTERS.max_bytes) do
    local before = counts.dead_letter_bytes
    drop_dead_letters(call("ZRANGE", prefix .. "dead_letters", 0, 0))
    num_left, num_bytes = num_left - 1, num_bytes + counts.dead_letter_bytes - before
  end
  if num_left == 1 then -- corrects what scripts without this counter deleted
    count("dead_letter_bytes", newest_bytes - num_bytes)
  end
end

local function dead_letter(id, reason, evidence, attempt, crashes, record, time_ms)
  local line = '{"id":"' .. id .. '","reason":"' .. reason .. '","at_ms":' .. integer(time_ms) .. ',"attempt":'
    .. attempt .. ',"crashes":' .. crashes .. ',"evidence":' .. (evidence == "" and "null" or evidence) .. "}"
  local num_bytes = #line + 1 + #record
  drop_dead_letters({ id }) -- an earlier one of the same id
  call("ZADD", prefix .. "dead_letters", time_ms, id)
  call("HSET", prefix .. "dead_letter_info", id, line .. "\n" .. record)
  count("dead_letter_bytes", num_bytes)
  count("dead_lettered", 1)
  keep_dead_letter_caps(num_bytes)
end

-- Keep an inbox element that is no request. `evidence` is a JSON object.
local function dead_letter_element(id, reason, evidence, crashes, element, time_ms)
  if #element > DEAD_LETTERS.max_element_bytes then
    local facts = '{"num_bytes":' .. #element .. ',"num_kept_bytes":' .. DEAD_LETTERS.num_kept_bytes .. ',"sha1":"'
      .. redis.sha1hex(element) .. '"'
    evidence = facts .. (#evidence > 2 and "," .. string.sub(evidence, 2) or "}")
    element = string.sub(element, 1, DEAD_LETTERS.num_kept_bytes)
  end
  dead_letter(id, reason, evidence, 0, crashes, element, time_ms)
end
