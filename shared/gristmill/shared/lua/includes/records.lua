-- records: read the header of a record in request:<id>.
--
-- After its 15 fields a header may have facts: "|name=value", or "|!name=value" if a worker must understand it. Readers
-- leave facts that they do not know as they are.

local IS_PRIORITY = { high = true, normal = true, low = true }
local TEXT = "|([^|\n]*)"
local HEADER = "^1|(%d+)|(%d+)" .. TEXT .. TEXT .. TEXT .. TEXT .. "|(%d+)|(%d+)|(%d+)" .. TEXT .. TEXT
  .. "|[^|\n]*|[^|\n]*|[^|\n]*([^\n]*)\n([^\n]*)\n"
local COUNTED = "^[^|\n]*|[^|\n]*|[^|\n]*|([%w._:/@=+-]+)" .. string.rep("|[^|\n]*", 3) .. "|(%d+)|(%d+)|" -- of any version
local MODEL_AND_PREFIX = "^1" .. string.rep("|[^|\n]*", 11) .. "|([^|\n]*)|([^|\n]*)" -- fields 13 and 14

-- Bound what a request costs its tenant. Below 1, a tenant of free requests would always be next.
-- Above 2^24, one request would lift virtual time to where a double no longer sees the costs of others.
local MAX_COST = 2 ^ 24
local function bounded_cost(tokens)
  if tokens < 1 then
    return 1
  end
  return tokens < MAX_COST and tokens or MAX_COST
end

-- Return a header, with what counters need if it can be told, with which an unreadable record can still be ended, so that no script stops half-way.
-- A record is unreadable if it has another version, or if somebody wrote it past the scripts. Invariant 6.
local function unreadable_header(record)
  local tenant, prompt_tokens, max_tokens = string.match(record, COUNTED)
  return { is_readable = false, enqueued_ms = "0", deadline_ms = 0, tenant = tenant or "default", priority = "normal",
    digest = "", batch = "", prompt_tokens = 1, max_tokens = 0,
    cost = tenant and bounded_cost(prompt_tokens + max_tokens) or 1, max_attempts = 1, reply = "",
    endpoint = "", facts = "", metadata = "", record = "\n" }
end

-- Return the record of an id, or false. MGET reads a value of a wrong type as nothing, where GET would fail.
local function stored_record(id)
  return call("MGET", prefix .. "request:" .. id)[1]
end

local function header_of(record)
  local enqueued_ms, deadline_ms, tenant, priority, digest, batch, prompt_tokens, max_tokens, max_attempts, reply,
    endpoint, facts, metadata = string.match(record, HEADER)
  if not IS_PRIORITY[priority] then
    return unreadable_header(record)
  end
  prompt_tokens, max_tokens = tonumber(prompt_tokens), tonumber(max_tokens)
  return { is_readable = true, enqueued_ms = enqueued_ms, deadline_ms = tonumber(deadline_ms), tenant = tenant,
    priority = priority, digest = digest, batch = batch, prompt_tokens = prompt_tokens,
    max_tokens = max_tokens, cost = bounded_cost(prompt_tokens + max_tokens),
    max_attempts = max_attempts, reply = reply, endpoint = endpoint, facts = facts, metadata = metadata,
    record = record }
end

local MAX_HEADER = 4096 -- bytes that cover the longest header, and most metadata

-- Return the beginning of a STRING, or nil for nothing and for another type.
local function beginning_of(key)
  local beginning = redis.pcall("GETRANGE", key, 0, MAX_HEADER)
  return type(beginning) == "string" and beginning ~= "" and beginning or nil
end

-- Return the header of a stored request, or nil. It leaves the body unread if it can: a body may have megabytes.
local function stored_header(id)
  local beginning = beginning_of(prefix .. "request:" .. id)
  local header = beginning and header_of(beginning)
  if header and not header.is_readable and #beginning > MAX_HEADER then
    return header_of(stored_record(id))
  end
  return header
end
