-- dead_letters: keep what could not be served, with its bytes. Invariants 6 and 7.

local MAX_DEAD_LETTERS = 100000

local function dead_letter(id, reason, evidence, attempt, crashes, record, time_ms)
  local line = '{"id":"' .. id .. '","reason":"' .. reason .. '","at_ms":' .. integer(time_ms) .. ',"attempt":'
    .. attempt .. ',"crashes":' .. crashes .. ',"evidence":' .. (evidence == "" and "null" or evidence) .. "}"
  call("ZADD", prefix .. "dead_letters", time_ms, id)
  call("HSET", prefix .. "dead_letter_info", id, line .. "\n" .. record)
  count("dead_lettered", 1)
  if call("ZCARD", prefix .. "dead_letters") > MAX_DEAD_LETTERS then
    local oldest = call("ZPOPMIN", prefix .. "dead_letters")
    call("HDEL", prefix .. "dead_letter_info", oldest[1])
  end
end
