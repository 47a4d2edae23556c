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
--       wants        str    the events somebody is told about; may be empty
--       concurrency  str    'hash:limit' of a concurrency key; may be empty
--       next_ms      opt    first nominal time owed; empty = none
--       fingerprint  str    of the normalised definition
--       tzdata       str    release of the zone data that next_ms depends on; empty = on none
-- REPLY word, status, version: 'created', 'replaced', 'same' (nothing to change), 'exists',
--       'missing', 'version', 'owed' (fire first, then ask again)
-- COST  O(log schedules)
-- @include lib/clock
-- @include lib/keys
-- @include lib/move
-- @include lib/due
-- @include lib/acks
-- @include lib/dead
-- @include lib/notify
-- @include lib/occurrence
-- @include lib/verdict
-- @include lib/unhold
-- @include lib/waiting
-- @include lib/head
local now, seen = read_clock(now_ms)
local schedule = read_schedule(ref)
local to_lane = lane_of(lane)
if not to_lane or not string.match(ref, '^[^:]+:[^:]+$') then return redis.error_reply('BADARG lane or ref') end
if kind == 'delay' and not delay_ms then return redis.error_reply('BADARG delay_ms') end
if math.abs(created_ms - now) > 60000 then return redis.error_reply('BADARG created_ms') end
if op == '' then return redis.error_reply('BADARG op') end
local function answer(word) return { word, schedule.status, tonumber(schedule.version) } end
local stored = schedule and redis.call('HMGET', schedule.key, 'fingerprint', 'rule') or {}
if schedule and answered(schedule, op) then return answer(answered(schedule, op)) end
if schedule and stored[1] == fingerprint then return answer('same') end
if schedule and not expected then return answer('exists') end
if not schedule and expected then return { 'missing', '', 0 } end
if schedule and expected ~= tonumber(schedule.version) then return answer('version') end
local rekeyed = schedule and schedule.kind ~= kind
local chained = schedule and not rekeyed and is_chained(schedule)
-- What came due since next_ms was computed is owed under the old definition, not under the new one.
local late = schedule and schedule.status ~= 'PAUSED' and not chained and next_ms and next_ms <= now
if schedule and (late or is_owed(schedule, now)) then return answer('owed') end

keep_clock(now, seen)
local word = schedule and 'replaced' or 'created'
if not schedule then
  schedule = { ref = ref, key = SCHEDULE .. ref, set = {} }
  schedules_read[ref] = schedule
  keep_schedule(schedule, 'generation', created_ms)
  keep_schedule(schedule, 'created_ms', created_ms)
  keep_schedule(schedule, 'status', 'ACTIVE')
end

-- A chain that becomes a rule, or the other way round, begins anew: what the old one had decided on
-- and not begun gets no run.
local function begin_anew()
  local head = waiting_head(schedule)
  keep_schedule(schedule, 'head', nil)
  keep_schedule(schedule, 'held_next_ms', nil)
  if head then call_off(head, now) end
  drop_held(schedule)
  local left = redis.call('LRANGE', CATCHUP .. ref, 0, -1)
  if #left > 0 then
    ledger(schedule, 'catch_up_dropped', tonumber(left[1]), tonumber(left[#left]), #left, '')
    redis.call('DEL', CATCHUP .. ref)
  end
  if schedule.status == 'BLOCKED' then turn(schedule, 'ACTIVE') end
end
if rekeyed then begin_anew() end
if overlap ~= 'queue' and overlap ~= 'cancel' then drop_held(schedule) end

keep_schedule(schedule, 'version', (tonumber(schedule.version) or 0) + 1)
keep_schedule(schedule, 'updated_ms', now)
remember(schedule, op, word)
local body = #payload > INLINE_MAX + 1
local fields = {
  kind = kind, rule = rule, policy = policy ~= '' and policy, lane = lane, fingerprint = fingerprint,
  overlap = overlap ~= '' and overlap ~= 'skip' and overlap, after = after == 'success' and after,
  owner = owner ~= '' and owner, options = options ~= '' and options, delay_ms = delay_ms, jitter_ms = jitter_ms,
  ['end_ms'] = end_ms, max_runs = max_runs, lease_ms = lease_ms, wants = wants ~= '' and wants, concurrency = concurrency ~= '' and concurrency, tzdata = tzdata ~= '' and tzdata,
  payload = not body and payload ~= '' and string.sub(payload, 2), body = body and #payload - 1,
}
for _, field in ipairs({ 'kind', 'rule', 'policy', 'lane', 'fingerprint', 'overlap', 'after', 'owner', 'options',
  'delay_ms', 'jitter_ms', 'end_ms', 'max_runs', 'lease_ms', 'wants', 'concurrency', 'tzdata', 'payload', 'body' }) do
  keep_schedule(schedule, field, fields[field] or nil)
end
if body then redis.call('SET', schedule.key .. ':body', string.sub(payload, 2)) else redis.call('DEL', schedule.key .. ':body') end

-- A waiting head of a chain follows the template.
local function rewrite(head)
  put_head(head, head.due_ms, to_lane, 'schedule_version', schedule.version)
  redis.call('HDEL', head.key, 'payload', 'options', 'lease_ms', 'wants', 'concurrency', 'body')
  for _, field in ipairs({ 'payload', 'options', 'lease_ms', 'wants', 'concurrency', 'body' }) do
    if schedule[field] then redis.call('HSET', head.key, field, schedule[field]) end
  end
  if body then redis.call('COPY', schedule.key .. ':body', BODY .. head.id, 'REPLACE') else redis.call('DEL', BODY .. head.id) end
end
local head = waiting_head(schedule)
if head then rewrite(head) end

local over = not chained and (not next_ms or is_exhausted(schedule))
if schedule.status == 'ENDED' and not over and (not chained or not is_exhausted(schedule)) then turn(schedule, 'ACTIVE') end
next_at(schedule, schedule.status == 'ACTIVE' and not chained and not over and next_ms or nil)
if over and kind == 'delay' then
  end_schedule(schedule)
elseif over then
  end_if_over(schedule)
elseif schedule.status == 'PAUSED' and kind == 'delay' and not chained and (rekeyed or stored[2] ~= rule) then
  keep_schedule(schedule, 'held_next_ms', next_ms)
end
schedule_flush()
ack_flush()
due_flush()
verdict_flush()
if schedule.next_ms then redis.call('SPUBLISH', WAKE, 'due ' .. schedule.next_ms) end
tell(now)
return answer(word)
