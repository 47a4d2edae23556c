-- occurrence: the tasks a schedule makes from its template, and what their verdicts lead to. An id is
-- a pure function of (tenant, schedule, generation, nominal time or number): what exists was made.
local SCHEDULE, SCHEDULES, OPEN = shard .. ':schedule:', shard .. ':schedules', shard .. ':open:'
local CATCHUP, LEDGER = shard .. ':catchup:', shard .. ':ledger:'
local HELD_MS = 253402300799999   -- the due time of an occurrence that a pause holds: not in this age
local LEDGER_MAX, LEDGER_MS = 100, 7 * 24 * 3600000
local ALPHABET = '0123456789abcdefghjkmnpqrstvwxyz'
local SCHEDULE_FIELDS = { 'status', 'version', 'generation', 'lane', 'payload', 'body', 'options', 'lease_ms', 'overlap',
  'held', 'head', 'number', 'delay_ms', 'after', 'runs', 'max_runs', 'end_ms', 'next_ms', 'jitter_ms', 'catching',
  'last_ms', 'kind', 'op' }
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
  schedule[field] = value
  schedule.set[field] = value or false
end

local function next_at(schedule, next_ms)
  keep_schedule(schedule, 'next_ms', next_ms)
  redis.call('ZADD', SCHEDULES, next_ms or '+inf', schedule.ref)
end

local function turn(schedule, status, reason)
  keep_schedule(schedule, 'status', status)
  keep_schedule(schedule, 'reason', reason)
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

-- 'outcome first_ms last_ms count note': neighbours with the same outcome become one range.
local function ledger(schedule, outcome, first_ms, last_ms, count, note)
  local key = LEDGER .. schedule.ref
  local function entry(from_ms, times, remark)
    return outcome .. ' ' .. from_ms .. ' ' .. string.format('%.0f', last_ms) .. ' ' .. times .. ' ' .. remark
  end
  local before = outcome ~= 'fired' and redis.call('LINDEX', key, -1)
  local was, from_ms, _, times, remark = string.match(before or '', '^(%S+) (%S+) (%S+) (%S+) ?(%S*)$')
  if was == outcome then
    redis.call('LSET', key, -1, entry(from_ms, times + count, note == '' and remark or note))
    return
  end
  redis.call('RPUSH', key, entry(string.format('%.0f', first_ms), count, note))
  redis.call('LTRIM', key, -LEDGER_MAX, -1)
end

local function occurrence_id(schedule, what)
  local number = tonumber(string.match(shard, ':(%d+)}$'))
  local high, low = math.floor(number / 32) + 1, number % 32 + 1
  return 'r' .. string.sub(redis.sha1hex(schedule.ref .. '/' .. schedule.generation .. '/' .. what), 1, 20)
    .. string.sub(ALPHABET, high, high) .. string.sub(ALPHABET, low, low)
end

-- run: {what, nominal_ms, due_ms, missed, extra}. Returns the id, or nil where the task was there before.
local function make_occurrence(schedule, run, now)
  local id = occurrence_id(schedule, run.what)
  local key = TASK .. id
  if redis.call('EXISTS', key) == 1 then return nil end
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
  copy('body', schedule.body)
  copy('missed', run.missed and run.missed > 0 and run.missed)
  copy('held_due_ms', run.held_due_ms)
  if schedule.body then redis.call('COPY', SCHEDULE .. schedule.ref .. ':body', BODY .. id) end
  create({ id = id, key = key, lane = lane }, fields)
  due_add(lane, id, run.due_ms)
  redis.call('SADD', OPEN .. schedule.ref, id)
  return id
end

local function count_run(schedule)
  keep_schedule(schedule, 'runs', (tonumber(schedule.runs) or 0) + 1)
  return schedule.max_runs and tonumber(schedule.runs) >= tonumber(schedule.max_runs)
end

local function end_schedule(schedule)
  turn(schedule, 'ENDED')
  next_at(schedule, nil)
end

-- Makes the occurrence of a nominal time that the rule owes; counted, and in the ledger.
local function fire_run(schedule, run, now)
  local id = make_occurrence(schedule, run, now)
  ledger(schedule, 'fired', run.nominal_ms, run.nominal_ms, 1, string.format('%.0f', now - run.nominal_ms))
  if count_run(schedule) and schedule.status ~= 'ENDED' then end_schedule(schedule) end
  return id
end

-- The next head of a fixed-delay chain, due a delay from now.
local function fire_successor(schedule, now)
  local number = (tonumber(schedule.number) or 0) + 1
  local nominal_ms = now + tonumber(schedule.delay_ms)
  if schedule.end_ms and nominal_ms > tonumber(schedule.end_ms) then return end_schedule(schedule) end
  local due_ms = nominal_ms
  if schedule.jitter_ms then
    local share = tonumber(string.sub(redis.sha1hex(schedule.ref .. '/' .. number), 1, 8), 16) / 2 ^ 32
    due_ms = nominal_ms + math.floor(share * tonumber(schedule.jitter_ms))
  end
  local run = { what = 'n' .. number, nominal_ms = nominal_ms, due_ms = due_ms }
  if schedule.status == 'PAUSED' then run.due_ms, run.held_due_ms = HELD_MS, due_ms end
  local id = occurrence_id(schedule, run.what)
  keep_schedule(schedule, 'number', number)
  keep_schedule(schedule, 'head', id)
  keep_schedule(schedule, 'last_ms', nominal_ms)
  make_occurrence(schedule, run, now)
  ledger(schedule, 'fired', nominal_ms, nominal_ms, 1, '0')
  if count_run(schedule) then end_schedule(schedule) end
end

local function follow_head(schedule, task, now)
  if schedule.status == 'ENDED' then return end
  if schedule.after == 'success' and task.state ~= 'SUCCESS' then
    turn(schedule, 'BLOCKED', 'occurrence ' .. task.id .. ' is ' .. task.state)
    return
  end
  if schedule.status == 'BLOCKED' then turn(schedule, 'ACTIVE') end
  fire_successor(schedule, now)
end

-- Catch-up runs follow one another, oldest first.
local function follow_catchup(schedule, now)
  local nominal = redis.call('LPOP', CATCHUP .. schedule.ref)
  if not nominal then return keep_schedule(schedule, 'catching', nil) end
  local nominal_ms = tonumber(nominal)
  keep_schedule(schedule, 'catching', occurrence_id(schedule, nominal))
  fire_run(schedule, { what = nominal, nominal_ms = nominal_ms, due_ms = now }, now)
end

local function fire_held(schedule, now)
  if not schedule.held or schedule.status == 'PAUSED' or redis.call('SCARD', OPEN .. schedule.ref) > 0 then return end
  local nominal, missed = string.match(schedule.held, '^(%d+) (%d+)$')
  keep_schedule(schedule, 'held', nil)
  fire_run(schedule, { what = nominal, nominal_ms = tonumber(nominal), due_ms = now, missed = tonumber(missed) }, now)
end

-- What the verdict on one occurrence leads to, in the script that records it.
local function follow(task, now)
  local ref = redis.call('HGET', task.key, 'schedule')
  local schedule = ref and read_schedule(ref)
  if not schedule or redis.call('SREM', OPEN .. ref, task.id) == 0 then return end
  if schedule.head == task.id then follow_head(schedule, task, now) end
  if schedule.catching == task.id then follow_catchup(schedule, now) end
  fire_held(schedule, now)
end
