-- occurrence: the tasks a schedule makes from its template, and what their verdicts lead to. An id is
-- a pure function of (tenant, schedule, generation, nominal time or number): what exists was made.
-- Invariants: `open` holds the occurrences the rule made that have no verdict yet, `extra` those made
-- by hand; a chain hangs either on its head, while that is open, or on `next_ms`; the run that is being
-- caught up with (`catching`) is open, and stands outside of the overlap rule.
local SCHEDULE, OPEN = shard .. ':schedule:', shard .. ':open:'
local CATCHUP, LEDGER, EXTRA = shard .. ':catchup:', shard .. ':ledger:', shard .. ':extra:'
local HELD_MS = 253402300799999   -- the due time of an occurrence that a pause holds: not in this age
local LEDGER_MAX = 100
local SCHEDULE_FIELDS = { 'status', 'version', 'generation', 'lane', 'payload', 'body', 'options', 'lease_ms', 'overlap',
  'held', 'head', 'number', 'delay_ms', 'after', 'runs', 'max_runs', 'end_ms', 'next_ms', 'jitter_ms', 'catching',
  'last_ms', 'kind', 'op', 'held_next_ms', 'tzdata', 'wants', 'concurrency' }
local schedules_read = {}

-- ref is 'tenant:id'. Numbers stay text, as stored; `set` collects what schedule_flush writes.
local function read_schedule(ref)
  local schedule = schedules_read[ref]
  if schedule ~= nil then return schedule end
  local v = redis.call('HMGET', SCHEDULE .. ref, unpack(SCHEDULE_FIELDS))
  schedule = v[1] and { ref = ref, key = SCHEDULE .. ref, set = {} } or false
  if schedule then
    for n, field in ipairs(SCHEDULE_FIELDS) do schedule[field] = v[n] or nil end
  end
  schedules_read[ref] = schedule
  return schedule
end

local function keep_schedule(schedule, field, value)
  if type(value) == 'number' then value = string.format('%.0f', value) end
  if value ~= nil and schedule[field] == value then return end
  schedule[field] = value
  schedule.set[field] = value or false
end

local function next_at(schedule, next_ms)
  keep_schedule(schedule, 'next_ms', next_ms)
  redis.call('ZADD', SCHEDULES, next_ms or '+inf', schedule.ref)
end

local function turn(schedule, status, reason)
  keep_schedule(schedule, 'status', status)
  schedule.set.reason = reason or false
end

local function schedule_flush()
  for _, schedule in pairs(schedules_read) do
    local set, gone = {}, {}
    for field, value in pairs(schedule and schedule.set or {}) do
      if value then
        set[#set + 1] = field
        set[#set + 1] = value
      else
        gone[#gone + 1] = field
      end
    end
    if #gone > 0 then redis.call('HDEL', schedule.key, unpack(gone)) end
    if #set > 0 then redis.call('HSET', schedule.key, unpack(set)) end
    if schedule then schedule.set = {} end
  end
end

-- 'outcome first_ms last_ms count note': neighbours with the same outcome become one range, except
-- that each run has an entry of its own. The note: '+' (at least so many); of a run how late it was
-- made, and for a chain ':' and its number; 'by_hand', and for one without a nominal time ':' and its name.
local function ledger(schedule, outcome, first_ms, last_ms, count, note)
  local key = LEDGER .. schedule.ref
  local before = (outcome ~= 'fired' or note == 'by_hand') and redis.call('LINDEX', key, -1)
  local was, from_ms, to_ms, times, remark = string.match(before or '', '^(%S+) (%S+) (%S+) (%S+) ?(%S*)$')
  local merges = was == outcome and (outcome ~= 'fired' or remark == note)
  if merges then
    first_ms, last_ms = math.min(first_ms, tonumber(from_ms)), math.max(last_ms, tonumber(to_ms))
    count = count + tonumber(times)
    if note == '' then note = remark end
  end
  local entry = string.format('%s %.0f %.0f %.0f %s', outcome, first_ms, last_ms, count, note)
  if merges then
    redis.call('LSET', key, -1, entry)
  elseif redis.call('RPUSH', key, entry) > LEDGER_MAX then
    redis.call('LTRIM', key, -LEDGER_MAX, -1)
  end
end

local function occurrence_id(schedule, what)
  return derived_id('r', schedule.ref .. '/' .. schedule.generation .. '/' .. what)
end

-- 'missed' or 'blocked'; `what` tells one such event of the schedule from the next.
local function notify_schedule(schedule, word, what, now)
  local lane = lane_of(schedule.lane)
  if not is_wanted(lane.tenant, schedule.wants, word) then return end
  notify(lane, 'schedule.' .. word, schedule.ref, schedule.generation .. '/' .. what, now)
end

-- run: {what, nominal_ms, due_ms, missed, held_due_ms, by_hand}. Returns the id, or nil where the
-- task was there before (or retention took it a short while ago).
local function make_occurrence(schedule, run, now)
  local id = occurrence_id(schedule, run.what)
  local key = TASK .. id
  if redis.call('EXISTS', key, STUB .. id) > 0 then return nil end
  local lane = lane_of(schedule.lane)
  local fields = { 'due_ms', run.due_ms, 'lane', schedule.lane, 'created_ms', now, 'schedule', schedule.ref,
    'nominal_ms', run.nominal_ms, 'occurrence', run.what, 'schedule_version', schedule.version }
  local function copy(name, value)
    if not value then return end
    fields[#fields + 1] = name
    fields[#fields + 1] = value
  end
  copy('payload', schedule.payload)
  copy('options', schedule.options)
  copy('lease_ms', schedule.lease_ms)
  copy('wants', schedule.wants)
  copy('concurrency', schedule.concurrency)
  if schedule.concurrency then redis.call('SET', KEYED, '1') end
  copy('body', schedule.body)
  copy('missed', run.missed and run.missed > 0 and run.missed)
  copy('held_due_ms', run.held_due_ms)
  copy('by_hand', run.by_hand)
  if schedule.body then redis.call('COPY', SCHEDULE .. schedule.ref .. ':body', BODY .. id) end
  create(lane, id, key, unpack(fields))
  due_add(lane, id, run.due_ms)
  redis.call('SADD', (run.by_hand and EXTRA or OPEN) .. schedule.ref, id)
  return id
end

-- An occurrence that is unfinished keeps the next one waiting, except where it is caught up with.
local function is_busy(schedule)
  return redis.call('SCARD', OPEN .. schedule.ref) > (schedule.catching and 1 or 0)
end

-- The runs that the rule has decided on: made, kept waiting, or still to be caught up with.
local function allotted(schedule)
  return (tonumber(schedule.runs) or 0) + (schedule.held and 1 or 0) + redis.call('LLEN', CATCHUP .. schedule.ref)
end

local function is_exhausted(schedule)
  return schedule.max_runs ~= nil and allotted(schedule) >= tonumber(schedule.max_runs)
end

local function end_schedule(schedule)
  turn(schedule, 'ENDED')
  next_at(schedule, nil)
end

-- A rule is over when nothing comes any more: no nominal time, and no run that waits for another.
local function end_if_over(schedule)
  if schedule.status ~= 'ACTIVE' or schedule.next_ms or schedule.held or schedule.kind == 'delay' then return end
  if redis.call('EXISTS', CATCHUP .. schedule.ref) == 0 then end_schedule(schedule) end
end

-- Makes the occurrence of a nominal time that the rule owes; counted, and in the ledger. One that was
-- made by hand before has its outcome.
local function fire_run(schedule, run, now)
  local id = make_occurrence(schedule, run, now)
  if not id then return nil end
  local late = string.format('%.0f', math.max(now - run.nominal_ms, 0))
  if run.number then late = late .. ':' .. run.what end
  ledger(schedule, 'fired', run.nominal_ms, run.nominal_ms, 1, late)
  keep_schedule(schedule, 'runs', (tonumber(schedule.runs) or 0) + 1)
  return id
end

-- Makes the next link of a chain its head.
local function fire_head(schedule, run, now)
  run.number = (tonumber(schedule.number) or 0) + 1
  run.what = 'n' .. run.number
  keep_schedule(schedule, 'number', run.number)
  keep_schedule(schedule, 'head', occurrence_id(schedule, run.what))
  keep_schedule(schedule, 'last_ms', run.nominal_ms)
  fire_run(schedule, run, now)
end

-- The next head of a fixed-delay chain, due a delay from now. The chain ends with a verdict.
local function fire_successor(schedule, now)
  local nominal_ms = now + tonumber(schedule.delay_ms)
  local over = schedule.end_ms and nominal_ms > tonumber(schedule.end_ms)
  if over or is_exhausted(schedule) then return end_schedule(schedule) end
  local due_ms = nominal_ms
  if schedule.jitter_ms then
    local hash = redis.sha1hex(schedule.ref .. '/' .. string.format('%.0f', nominal_ms))
    due_ms = nominal_ms + math.floor(tonumber(string.sub(hash, 1, 8), 16) / 2 ^ 32 * tonumber(schedule.jitter_ms))
  end
  local run = { nominal_ms = nominal_ms, due_ms = due_ms }
  if schedule.status == 'PAUSED' then run.due_ms, run.held_due_ms = HELD_MS, due_ms end
  if schedule.next_ms then next_at(schedule, nil) end
  fire_head(schedule, run, now)
end

local function follow_head(schedule, task, now)
  if schedule.status == 'ENDED' then return end
  if schedule.after == 'success' and task.state ~= 'SUCCESS' then
    -- Who paused it decides when it goes on.
    local status = schedule.status == 'PAUSED' and 'PAUSED' or 'BLOCKED'
    turn(schedule, status, 'occurrence ' .. task.id .. ' is ' .. task.state)
    if status == 'BLOCKED' then notify_schedule(schedule, 'blocked', task.id, now) end
    return
  end
  if schedule.status ~= 'ACTIVE' then turn(schedule, schedule.status == 'BLOCKED' and 'ACTIVE' or schedule.status) end
  fire_successor(schedule, now)
end

-- Catch-up runs follow one another, oldest first; a pause keeps the rest.
local function follow_catchup(schedule, now)
  keep_schedule(schedule, 'catching', nil)
  while schedule.status ~= 'PAUSED' do
    local nominal = redis.call('LPOP', CATCHUP .. schedule.ref)
    if not nominal then return end
    local id = fire_run(schedule, { what = nominal, nominal_ms = tonumber(nominal), due_ms = now }, now)
    if id then return keep_schedule(schedule, 'catching', id) end
  end
end

local function held_ms(schedule) return tonumber(string.match(schedule.held, '^%S+')) end

local function fire_held(schedule, now)
  if not schedule.held or schedule.status == 'PAUSED' or is_busy(schedule) then return end
  local nominal, missed = string.match(schedule.held, '^(%S+) (%d+)$')
  keep_schedule(schedule, 'held', nil)
  fire_run(schedule, { what = nominal, nominal_ms = tonumber(nominal), due_ms = now, missed = tonumber(missed) }, now)
end

-- The nominal time that was kept waiting gets no run after all.
local function drop_held(schedule)
  if not schedule.held then return end
  ledger(schedule, 'skipped_overlap', held_ms(schedule), held_ms(schedule), 1, '')
  keep_schedule(schedule, 'held', nil)
end

-- What the verdict on one occurrence leads to, in the script that records it.
local function follow(task, now)
  local ref = redis.call('HGET', task.key, 'schedule')
  local schedule = ref and read_schedule(ref)
  if not schedule then return end
  if redis.call('SREM', OPEN .. ref, task.id) == 0 then
    redis.call('SREM', EXTRA .. ref, task.id)
    return
  end
  if schedule.head == task.id then follow_head(schedule, task, now) end
  if schedule.catching == task.id then follow_catchup(schedule, now) end
  fire_held(schedule, now)
  end_if_over(schedule)
end
