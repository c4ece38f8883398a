-- schema: every key that the scripts of a queue touch, and what every script needs. keys.py formats these keys and those
-- that only Python touches.
--
-- KEYS[1] is the prefix "gm:{queue}:". Every key below begins with it, so all of them hash to one slot of a
-- Redis Cluster. A lane is suspect, high, normal or low. A flow is a tenant, or * for all tenants together.
--
--   format                   STRING  version of this table; other versions refuse the queue
--   scheduling               HASH    order, ageing_ms: in which order claims take waiting requests; is_mixed: some of
--                                    them may lie where an earlier order has put them
--   pending:<lane>:<flow>    LIST    ids that wait, first come first served
--   pending_sjf:<lane>:<flow>       ZSET   ids that wait -> position: the shortest request is first;
--   pending_deadline:<lane>:<flow>  ZSET   the earliest deadline is first;
--   pending_prefix:<lane>:<flow>    ZSET   requests with the same prompt prefix stand together
--   parked                   SET     reasons for which ids are parked: batch:<batch>, facts:<name>,<name>
--   parked:<reason>          ZSET    ids that wait and may not be claimed, or not by every worker -> enqueued_ms
--   parked_claimable         SET     those of them whose ids some worker may have: of resumed batches, and facts
--   pauses                   HASH    "queue" or "batch:<batch>" -> JSON: at_ms, by, reason
--   flows:<lane>             ZSET    flows with waiting ids -> virtual time (fair share)
--   debt:<lane>              ZSET    flows without waiting ids that were served ahead -> virtual time
--   virtual_time             HASH    lane -> virtual time of the last claim
--   tenant_weights           HASH    tenant -> share of the engine, 1 unless an operator sets it
--   tenant_output_shares     HASH    tenant -> generated share of max_tokens, as seen lately
--   prefix_groups            HASH    "lane|flow|prefix" -> "position|size" of the group that is filling; last -> position
--   inbox                    LIST    plain JSON that anybody may RPUSH
--   inbox_suspects           LIST    elements that a worker had not admitted when it died; claims take them one by one
--   admitting:<worker>       HASH    token -> inbox element that this worker took and has not admitted yet
--   request:<id>             STRING  header line, metadata line, body; exists <=> not terminal
--   attempts                 HASH    id -> "deliveries|uncounted|crashes", only for ids tried before
--   in_flight:<worker>       HASH    id -> delivery; membership with the same number is the fence
--   owner                    HASH    id -> "worker" or "worker|cost|lane|tenant", for in-flight ids; the cost is what the
--                                    claim charged to the tenant
--   workers                  ZSET    worker -> lease expiry in ms
--   worker:<worker>          HASH    what it serves, what its engine does, and why it is braked; for people and routing
--   last_claim:<worker>      STRING  "nonce|id,id,..." of its last claim
--   abort:<worker>           LIST    ids it must abort
--   producers                ZSET    producer that is still submitting -> lease expiry in ms
--   delayed                  ZSET    id -> ms at which it may be claimed
--   deadlines                ZSET    id -> ms at which it expires, if it has a deadline
--   result:<id>              STRING  the terminal record, JSON, with a TTL
--   events:<id>              STREAM  delivery-number -> num_bytes (of all events so far), events, end; with a TTL
--   dead_letters             ZSET    id -> ms at which it became a dead letter
--   dead_letter_info         HASH    id -> evidence line, then the record
--   batch:<id>               HASH    counters of a batch, and what its requests used
--   batches_done             LIST    batches that completed, each once
--   finished:<client>        LIST    ids that finished, newest 10,000
--   doorbell                 LIST    at most 4 tokens that wake idle workers
--   view                     STRING  the latest reply of stats without the names of workers, in MessagePack, with a TTL
--   times                    HASH    last_beat_ms, grace_until_ms; upkeep_ms: when the last turn of upkeep began;
--                                    normal_served_ms, low_served_ms: when a claim last took from the lane, or when its
--                                    backlog began
--   stats                    HASH    queued, queued_tokens, in_flight, in_flight_tokens, bytes, large (records over 256 KiB),
--                                    dead_letter_bytes (now; tokens as the headers estimate them); the other fields only grow
--   pace                     HASH    tokens that acks ended in busy_ms, by the headers; since_ms: when that was last added
--                                    up, or when the queue began to work
--   usage:<day>              HASH    "tenant|model" -> "requests|prompt_tokens|cached_tokens|output_tokens|device_ms" of
--                                    what acks ended on a UTC day, which is counted from 1970-01-01
--   wrong_types              SET     names of keys that had a wrong type and were moved away
--   wrong_type:<name>        ANY     such a key, with a TTL
--   tenant_load              HASH    "tenant|requests", "tenant|bytes" of what is not terminal; no field is 0
--
-- Header of request:<id>, version 1, fields separated by "|":
--   1|enqueued_ms|deadline_ms|tenant|priority|digest|batch|prompt_tokens|max_tokens|max_attempts|reply|endpoint|model|prefix|origin
-- then any number of facts: |name=value, or |!name=value if a worker must understand it.

local prefix = KEYS[1]
local call = redis.call

local DAY_MS = 24 * 3600 * 1000
local MAX_UNPACKED = 1000 -- values that one call unpacks; Lua's limit is about 8,000

local function now_ms()
  local time = call("TIME")
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Return all digits of a number; Lua itself prints large ones as 1e+15. Most are asked for again (the time, 0, 1),
-- and one costs as much to print as a command to call.
local digits = {}
local function integer(number)
  digits[number] = digits[number] or string.format("%.0f", number)
  return digits[number]
end
