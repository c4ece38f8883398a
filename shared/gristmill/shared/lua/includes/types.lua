-- types: move keys of a wrong type away before a script changes anything, since Redis undoes nothing when a command fails.
--
-- A key whose type is not the schema's is no data of the queue: somebody else wrote it. It is renamed to
-- wrong_type:<name>, and the SET wrong_types names it; both live for 7 days. A queue of another format may have other
-- types, so none of its keys is moved.

local FORMAT_OF_KEYS = "1"
local MAX_WRONG_TYPES = 1000 -- keys kept; what is wrong beyond them is deleted
-- Command that counts the elements of a type -> names of keys. scripts.py fills it with those that the script uses.
local CHECKED_NAMES = {}

local format_of_queue = call("MGET", prefix .. "format")[1] -- false too if it has a wrong type
local has_our_types = not format_of_queue or format_of_queue == FORMAT_OF_KEYS
local seen_names = {} -- name -> true

local function move_away(name)
  local index_key, kept_key = prefix .. "wrong_types", prefix .. "wrong_type:" .. name
  if name == "wrong_types" or call("SCARD", index_key) >= MAX_WRONG_TYPES then
    call("UNLINK", prefix .. name)
    return
  end
  call("RENAME", prefix .. name, kept_key)
  call("PEXPIRE", kept_key, 7 * DAY_MS)
  call("SADD", index_key, name)
  call("PEXPIRE", index_key, 7 * DAY_MS)
end

-- Return the key of a name; a value of a wrong type is moved away. `counting` is the command that counts the elements
-- of the right type. STRINGs need no check: MGET reads another type as nothing, and SET replaces it.
local function key_of(name, counting)
  if has_our_types and not seen_names[name] then
    seen_names[name] = true
    local reply = redis.pcall(counting, prefix .. name)
    if type(reply) == "table" and string.find(reply.err, "WRONGTYPE", 1, true) then
      move_away(name)
    end
  end
  return prefix .. name
end

local function for_checked_names(check)
  for counting, names in pairs(CHECKED_NAMES) do
    for i = 1, #names do
      check(names[i], counting)
    end
  end
end

local function count_elements(name, counting)
  call(counting, prefix .. name)
end

-- One protected call for all keys costs half of one for each, and nearly always nothing is wrong.
if has_our_types and not pcall(for_checked_names, count_elements) then
  for_checked_names(key_of)
end
