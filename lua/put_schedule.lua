#!lua
--- put_schedule: create a schedule, or replace its definition; its history stays.
--
-- KEYS  clock        hash   of the shard
-- ARGV  now_ms       int    0 = ask the server
--       ref          str    tenant:id
--       expected     opt    the version it must have; empty = it must not exist
--       created_ms   int    the generation of a new one: the server's time, read by the caller
--       op           str    names this call; the same one again is answered again
--       kind         str    cron interval delay rrule
--       rule         str    JSON of the rule's fields, bound to the schedule
--       policy       str    JSON of what only planning needs
--       overlap      str    skip queue allow cancel; empty = skip
--       after        str    terminal success; empty = terminal
--       owner        str    who declared it in code; may be empty
--       delay_ms     opt    of a fixed delay
--       jitter_ms    opt
--       end_ms       opt
--       max_runs     opt
--       lane         str
--       payload      bytes  '=bytes'; empty = none
--       options      str
--       lease_ms     opt
--       next_ms      opt    first nominal time owed; empty = none
--       fingerprint  str    of the normalised definition
-- REPLY word, status, version: 'created', 'replaced', 'same' (nothing to change), 'exists',
--       'missing', 'version', 'owed' (fire first, then ask again)
-- COST  O(log schedules)
-- @include lib/clock
-- @include lib/keys
-- @include lib/move
-- @include lib/due
-- @include lib/acks
-- @include lib/occurrence
-- @include lib/verdict
-- @include lib/waiting
-- @include lib/head
local INLINE_MAX = 1024
local now, seen = read_clock(now_ms)
local schedule = read_schedule(ref)
local to_lane = lane_of(lane)
if not to_lane or not string.match(ref, '^[^:]+:[^:]+$') then return redis.error_reply('BADARG lane or ref') end
if math.abs(created_ms - now) > 60000 then return redis.error_reply('BADARG created_ms') end
local function answer(word) return { word, schedule.status, tonumber(schedule.version) } end
if schedule and op == schedule.op then return answer('same') end
if schedule and redis.call('HGET', schedule.key, 'fingerprint') == fingerprint then return answer('same') end
if schedule and not expected then return answer('exists') end
if not schedule and expected then return { 'missing', '', 0 } end
if schedule and expected ~= tonumber(schedule.version) then return answer('version') end
if schedule and is_owed(schedule, now) then return answer('owed') end

keep_clock(now, seen)
local word = schedule and 'replaced' or 'created'
if not schedule then
  schedule = { ref = ref, key = SCHEDULE .. ref, set = {} }
  schedules_read[ref] = schedule
  keep_schedule(schedule, 'generation', created_ms)
  keep_schedule(schedule, 'created_ms', created_ms)
  keep_schedule(schedule, 'status', 'ACTIVE')
end
local rekeyed = schedule.kind and schedule.kind ~= kind
keep_schedule(schedule, 'version', (tonumber(schedule.version) or 0) + 1)
keep_schedule(schedule, 'updated_ms', now)
local body = #payload > INLINE_MAX + 1
local fields = {
  op = op, kind = kind, rule = rule, policy = policy, lane = lane, fingerprint = fingerprint,
  overlap = overlap ~= '' and overlap ~= 'skip' and overlap, after = after == 'success' and after,
  owner = owner ~= '' and owner, options = options ~= '' and options, delay_ms = delay_ms, jitter_ms = jitter_ms,
  ['end_ms'] = end_ms, max_runs = max_runs, lease_ms = lease_ms,
  payload = not body and payload ~= '' and string.sub(payload, 2), body = body and #payload - 1,
}
for _, field in ipairs({ 'op', 'kind', 'rule', 'policy', 'lane', 'fingerprint', 'overlap', 'after', 'owner', 'options',
  'delay_ms', 'jitter_ms', 'end_ms', 'max_runs', 'lease_ms', 'payload', 'body' }) do
  keep_schedule(schedule, field, fields[field] or nil)
end
if body then redis.call('SET', schedule.key .. ':body', string.sub(payload, 2)) else redis.call('DEL', schedule.key .. ':body') end

-- A waiting head of a chain follows the template; a chain that became a rule, or the other way
-- round, begins anew; what was kept waiting by another policy is let go.
local head = waiting_head(schedule)
if rekeyed then
  keep_schedule(schedule, 'head', nil)
  keep_schedule(schedule, 'held', nil)
elseif head then
  put_head(head, head.due_ms, to_lane, 'schedule_version', schedule.version)
  redis.call('HDEL', head.key, 'payload', 'options', 'lease_ms', 'body')
  for _, field in ipairs({ 'payload', 'options', 'lease_ms', 'body' }) do
    if schedule[field] then redis.call('HSET', head.key, field, schedule[field]) end
  end
  if body then redis.call('COPY', schedule.key .. ':body', BODY .. head.id, 'REPLACE') end
end
if overlap ~= 'queue' and overlap ~= 'cancel' then keep_schedule(schedule, 'held', nil) end

local ended = schedule.status == 'ENDED' or (schedule.max_runs and (tonumber(schedule.runs) or 0) >= tonumber(schedule.max_runs))
local chained = kind == 'delay' and schedule.head and redis.call('SISMEMBER', OPEN .. ref, schedule.head) == 1
if schedule.max_runs and (tonumber(schedule.runs) or 0) >= tonumber(schedule.max_runs) then
  end_schedule(schedule)
elseif not next_ms and not chained then
  end_schedule(schedule)
else
  if ended then turn(schedule, 'ACTIVE') end
  next_at(schedule, schedule.status == 'ACTIVE' and not chained and next_ms or nil)
end
schedule_flush()
ack_flush()
due_flush()
if schedule.next_ms then redis.call('SPUBLISH', WAKE, 'due ' .. schedule.next_ms) end
tell(now)
return answer(word)
