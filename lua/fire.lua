#!lua flags=allow-oom
--- fire: create the occurrences that schedules owe and advance them, once, in one step.
--
-- KEYS  clock     hash   of the shard
-- ARGV  now_ms    int    0 = ask the server
-- ROWS  ref       str    tenant:id
--       version   int    of the definition the plan was made from
--       expected  int    the stored next_ms the plan was made from
--       next_ms   opt    the nominal time after these; empty = there is none
--       settled   int    the last nominal time this plan settles
--       runs      str    'nominal:due:missed …' oldest first; more than one = catch-up, one after another
--       skipped   str    'outcome:first:last:count:exact …' for the ledger
-- REPLY a word a row: 'fired', 'stale' (another scheduler was first, or it was edited)
-- COST  O(rows · log tasks)
-- @include lib/clock
-- @include lib/keys
-- @include lib/move
-- @include lib/due
-- @include lib/acks
-- @include lib/occurrence
-- @include lib/verdict
-- @include lib/waiting
local now, seen = read_clock(now_ms)
local reply, firing = {}, {}

local function runs_of(text)
  local found = {}
  for nominal, due, missed in string.gmatch(text, '(%-?%d+):(%-?%d+):(%d+)') do
    found[#found + 1] = { what = nominal, nominal_ms = tonumber(nominal), due_ms = tonumber(due), missed = tonumber(missed) }
  end
  return found
end

for at = 1, rows do
  local ref, version, expected, next_ms, settled, runs, skipped = row(at)
  local schedule = read_schedule(ref)
  local current = schedule and schedule.status == 'ACTIVE' and tonumber(schedule.version) == version
    and tonumber(schedule.next_ms) == expected and not schedule.taken
  if current and expected <= now then
    schedule.taken = true
    reply[at] = 'fired'
    firing[#firing + 1] = { schedule = schedule, next_ms = next_ms, settled = settled, runs = runs_of(runs), skipped = skipped }
  else
    reply[at] = 'stale'
  end
end

-- The earlier runs of the schedule are asked to stop; true if none is left.
local function cancel_open(schedule)
  for _, id in ipairs(redis.call('SRANDMEMBER', OPEN .. schedule.ref, 100)) do
    local task = read_waiting(id)
    if task and (task.state == 'PENDING' or task.state == 'QUEUED') then
      withdraw(task)
      move(task, 'CANCELLED', 'finished_ms', now, 'cancel_requested', '1')
      conclude(task, now)
    elseif task and task.state == 'RUNNING' then
      redis.call('HSET', task.key, 'cancel_requested', '1', 'version', task.version + 1)
      redis.call('SPUBLISH', WAKE, 'cancel ' .. id)
    else
      redis.call('SREM', OPEN .. schedule.ref, id)
    end
  end
end

local function hold(schedule, run)
  keep_schedule(schedule, 'held', run.what .. ' ' .. string.format('%.0f', run.missed))
end

local function fire_one(schedule, run)
  local overlap = schedule.overlap or 'skip'
  if schedule.kind == 'delay' then
    run.what = 'n' .. ((tonumber(schedule.number) or 0) + 1)
    keep_schedule(schedule, 'number', (tonumber(schedule.number) or 0) + 1)
    keep_schedule(schedule, 'head', occurrence_id(schedule, run.what))
    return fire_run(schedule, run, now)
  end
  if overlap == 'allow' or redis.call('SCARD', OPEN .. schedule.ref) == 0 then return fire_run(schedule, run, now) end
  if overlap == 'cancel' then
    if schedule.held then
      local nominal_ms = tonumber(string.match(schedule.held, '^%d+'))
      ledger(schedule, 'skipped_overlap', nominal_ms, nominal_ms, 1, '')
    end
    hold(schedule, run)
    cancel_open(schedule)
    fire_held(schedule, now)
  elseif overlap == 'queue' and not schedule.held then
    hold(schedule, run)
  else
    ledger(schedule, 'skipped_overlap', run.nominal_ms, run.nominal_ms, 1, '')
  end
end

local function fire_catchup(schedule, runs)
  for _, run in ipairs(runs) do redis.call('RPUSH', CATCHUP .. schedule.ref, run.what) end
  if not schedule.catching then follow_catchup(schedule, now) end
end

local function left_of(schedule, runs)
  if not schedule.max_runs then return runs end
  local left = tonumber(schedule.max_runs) - (tonumber(schedule.runs) or 0) - redis.call('LLEN', CATCHUP .. schedule.ref)
  local kept = {}
  for n = 1, math.min(left, #runs) do kept[n] = runs[n] end
  return kept
end

keep_clock(now, seen)
for _, one in ipairs(firing) do
  local schedule = one.schedule
  for outcome, first, last, count, exact in string.gmatch(one.skipped, '(%S+):(%-?%d+):(%-?%d+):(%d+):(%d)') do
    ledger(schedule, outcome, tonumber(first), tonumber(last), tonumber(count), exact == '1' and '' or '+')
  end
  keep_schedule(schedule, 'last_ms', one.settled)
  next_at(schedule, schedule.kind ~= 'delay' and one.next_ms or nil)
  local runs = left_of(schedule, one.runs)
  if #runs > 1 then fire_catchup(schedule, runs) elseif #runs == 1 then fire_one(schedule, runs[1]) end
  local chained = schedule.kind == 'delay' and schedule.head
  if not one.next_ms and not chained and schedule.status == 'ACTIVE' then end_schedule(schedule) end
end
schedule_flush()
due_flush()
ack_flush()
verdict_flush()
tell(now)
return reply
