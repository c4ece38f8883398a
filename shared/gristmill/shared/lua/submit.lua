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
--          or an error INVALID, which names the first request that breaks the format, and nothing
--          was accepted: a producer in another language cannot write what no worker could read.
-- Keeps    1 (an accepted id has a request or a result), 7 (caps)

local FIRST, WIDTH = 3, 8
local NAME, MAYBE_NAME, NUMBER = "[%w._:/@=+-]+", "[%w._:/@=+-]*", "(%d+)"
local MAX_NAME, MAX_DIGEST, MAX_TAIL, MAX_DIGITS = 128, 64, 2048, 15 -- characters
-- id, tenant, deadline, delay, digest, then the tail: one pattern, since a match each costs more than the submit.
local FORMAT = "^" .. table.concat({ NAME, NAME, NUMBER, NUMBER, "%x+", MAYBE_NAME, NUMBER, NUMBER, NUMBER, MAYBE_NAME,
  "/[%w._/-]+", "[^|%z\1-\31]*", MAYBE_NAME, MAYBE_NAME }, "|") .. "$"

local function is_metadata(payload)
  if string.byte(payload) == 10 then
    return true
  end
  local metadata = string.match(payload, "^({[^\n]*})\n")
  return metadata and pcall(cjson.decode, metadata)
end

local function is_well_formed(id, tenant, priority, deadline_in_ms, delay_ms, digest, tail, payload)
  if not payload or not IS_PRIORITY[priority]
    or #id > MAX_NAME or #tenant > MAX_NAME or #digest > MAX_DIGEST or #tail > MAX_TAIL then
    return false
  end
  local line = id .. "|" .. tenant .. "|" .. deadline_in_ms .. "|" .. delay_ms .. "|" .. digest .. "|" .. tail
  local deadline, delay, prompt_tokens, max_tokens, max_attempts = string.match(line, FORMAT)
  return deadline and #deadline <= MAX_DIGITS and #delay <= MAX_DIGITS and #prompt_tokens <= MAX_DIGITS
    and #max_tokens <= MAX_DIGITS and #max_attempts <= MAX_DIGITS and is_metadata(payload)
end

if KEYS[2] and call("GET", KEYS[2]) ~= table.remove(ARGV) then
  return { "LOST" }
end

local new, new_bytes, is_new = 0, 0, {}
for i = FIRST, #ARGV, WIDTH do
  if not is_well_formed(unpack(ARGV, i, i + WIDTH - 1)) then
    return redis.error_reply("INVALID request " .. (i - FIRST) / WIDTH + 1 .. " of this call breaks the format of docs/protocol.md")
  end
  if call("EXISTS", prefix .. "request:" .. ARGV[i], prefix .. "result:" .. ARGV[i]) == 0 then
    is_new[i] = true
    new = new + 1
    new_bytes = new_bytes + #ARGV[i + 7]
  end
end

if new > 0 then
  local now = call("HMGET", prefix .. "stats", "queued", "in_flight", "bytes")
  local depth = (tonumber(now[1]) or 0) + (tonumber(now[2]) or 0)
  local bytes = tonumber(now[3]) or 0
  if depth + new > tonumber(ARGV[1]) or bytes + new_bytes > tonumber(ARGV[2]) then
    return { "FULL", depth, bytes }
  end
end

local time_ms = now_ms()
local codes = { "OK" }
for i = FIRST, #ARGV, WIDTH do
  codes[#codes + 1] = accept(is_new[i], ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4]),
    ARGV[i + 5], ARGV[i + 6], ARGV[i + 7], time_ms)
end
if new > 0 then
  ring_doorbell()
end
flush(0, time_ms)
return codes
