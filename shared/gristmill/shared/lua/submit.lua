-- submit: accept requests in bulk. Sent twice, the second answers "queued" or "done" for each id.
--
-- KEYS[1]  prefix
-- KEYS[2]  a lease, or left out: then the last of ARGV is the token that it must hold
-- ARGV     max_depth, max_bytes, then for each request:
--          id, tenant, priority, deadline_in_ms (0: none), delay_ms, digest, tail of the header
--          (from batch on), payload (metadata line, "\n", body)
-- Returns  {"OK", code...} with a code for each request: accepted, queued, done or conflict;
--          or {"FULL", depth, bytes} and nothing was accepted. Only new ids count against the caps;
--          or {"LOST"}: the lease is not the caller's, nothing was accepted;
--          or an error FORMAT: another version wrote this queue;
--          or an error INVALID, which names the first request that breaks the format, and nothing
--          was accepted: a producer in another language cannot write what no worker could read. More than
--          500 requests are refused in the same way.
-- Keeps    1 (an accepted id has a request or a result), 7 (caps)

local FIRST, WIDTH = 3, 8 -- the first value of the first request; values of a request
local NAME, MAYBE_NAME, NUMBER = "[%w._:/@=+-]+", "[%w._:/@=+-]*", "(%d+)"
local MAX_NAME, MAX_DIGEST, MAX_TAIL, MAX_DIGITS = 128, 64, 2048, 15 -- characters
-- id, tenant, deadline, delay, digest, tail: one pattern, since a match for each would cost more than the submit.
local FORMAT = "^" .. table.concat({ NAME, NAME, NUMBER, NUMBER, "%x+", MAYBE_NAME, NUMBER, NUMBER, NUMBER, MAYBE_NAME,
  "/[%w._/-]+", "[^|%z\1-\31]*", MAYBE_NAME, MAYBE_NAME }, "|") .. "([^%z\1-\31]*)$"
-- Beginnings of a value that cjson takes for a number and JSON does not (NaN, -inf, 0x1F, 01, +1), and of a lone 0.
local STRANGE, NAN = '[:,%[]%s*%-?[^%s"{%[tfn1-9-]', "[:,%[]%s*%-?n[^u]"
local MAX_REQUESTS = 500
local FACT = "^|!?(%l[%l%d_]*)=([%w._:/@=+,;-]*)"
local MAX_FACT_NAME, MAX_FACT_VALUE, MAX_FACTS = 32, 512, 1024 -- characters; the last of all facts of a request

local strict_json -- made at need, because it costs more than the check of a request

local function is_json(text)
  if not (string.find(text, STRANGE) or string.find(text, NAN)) then
    return pcall(cjson.decode, text)
  elseif not strict_json then
    strict_json = cjson.new()
    strict_json.decode_invalid_numbers(false)
  end
  return pcall(strict_json.decode, text)
end

local function is_metadata(payload)
  if string.byte(payload) == 10 then
    return true
  end
  local metadata = string.match(payload, "^({[^\n]*})\n")
  return metadata and is_json(metadata)
end

-- Return whether what follows the last field is a sequence of facts.
local function are_facts(text)
  if #text > MAX_FACTS then
    return false
  end
  while text ~= "" do
    local _, last, name, value = string.find(text, FACT)
    if not last or #name > MAX_FACT_NAME or #value > MAX_FACT_VALUE then
      return false
    end
    text = string.sub(text, last + 1)
  end
  return true
end

-- Return the cost of a request in tokens, or nil or false if a value breaks its format.
local function checked_cost(id, tenant, priority, deadline_in_ms, delay_ms, digest, tail, payload)
  if not payload or not IS_PRIORITY[priority] or #id > MAX_NAME or #tenant > MAX_NAME
    or #digest > MAX_DIGEST or #tail > MAX_TAIL then
    return false
  end
  local line = id .. "|" .. tenant .. "|" .. deadline_in_ms .. "|" .. delay_ms .. "|" .. digest .. "|" .. tail
  local deadline, delay, prompt_tokens, max_tokens, max_attempts, facts = string.match(line, FORMAT)
  return deadline and #deadline <= MAX_DIGITS and #delay <= MAX_DIGITS and #prompt_tokens <= MAX_DIGITS
    and #max_tokens <= MAX_DIGITS and #max_attempts <= MAX_DIGITS and (facts == "" or are_facts(facts)) and is_metadata(payload)
    and bounded_cost(prompt_tokens + max_tokens)
end

if KEYS[2] and call("GET", KEYS[2]) ~= table.remove(ARGV) then
  return { "LOST" }
end

-- Return whether none of the ids has a request or a result, which is the ordinary case: one call instead of one an id.
local function are_all_new()
  local keys = {}
  for first = FIRST, #ARGV, WIDTH do
    keys[#keys + 1], keys[#keys + 2] = prefix .. "request:" .. ARGV[first], prefix .. "result:" .. ARGV[first]
  end
  return #keys > 0 and #keys <= MAX_UNPACKED and call("EXISTS", unpack(keys)) == 0
end

if #ARGV >= FIRST + MAX_REQUESTS * WIDTH then
  return redis.error_reply("INVALID submit of " .. math.floor((#ARGV - FIRST + 1) / WIDTH) .. " requests; a call takes at most "
    .. MAX_REQUESTS .. ", so send several")
end

local costs = {}
for first = FIRST, #ARGV, WIDTH do
  costs[first] = checked_cost(unpack(ARGV, first, first + WIDTH - 1))
  if not costs[first] then
    return redis.error_reply("INVALID request " .. (first - FIRST) / WIDTH + 1 .. " of this call breaks the format of docs/protocol.md")
  end
end

local all_new, is_new, num_new, new_bytes = are_all_new(), {}, 0, 0
for first = FIRST, #ARGV, WIDTH do
  local id, payload = ARGV[first], ARGV[first + 7]
  if all_new or call("EXISTS", prefix .. "request:" .. id, prefix .. "result:" .. id) == 0 then
    is_new[first] = true
    num_new = num_new + 1
    new_bytes = new_bytes + #payload
  end
end

local wrong_format = format_error(num_new > 0)
if wrong_format then
  return wrong_format
end
if num_new > 0 then
  local depth, bytes = depth_and_bytes()
  if depth + num_new > tonumber(ARGV[1]) or bytes + new_bytes > tonumber(ARGV[2]) then
    return { "FULL", depth, bytes }
  end
end

local time_ms = now_ms()
local codes, request = { "OK" }, {}
for first = FIRST, #ARGV, WIDTH do
  read_request(request, first)
  request.cost = costs[first]
  codes[#codes + 1] = accept(request, is_new[first], time_ms)
end
if num_new > 0 then
  ring_doorbell()
end
flush(0, time_ms)
return codes
