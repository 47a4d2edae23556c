#!lua flags=allow-oom
--- fire: create the occurrences that schedules owe and advance them, once, in one step.
--
-- KEYS  clock     hash   of the shard
-- ARGV  now_ms    int    0 = ask the server
--       tzdata    str    release of the zone data that the plans were made with
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
-- @include lib/dead
-- @include lib/notify
-- @include lib/occurrence
-- @include lib/verdict
-- @include lib/unhold
-- @include lib/waiting
-- @include lib/head
local CATCHUP_MAX, CANCEL_MAX = 1000, 100
local OUTCOMES = { missed = true, coalesced = true, catch_up_dropped = true }
local now, seen = read_clock(now_ms)
local reply, firing = {}, {}

-- Each reads a list of words; nil where one of them is none of its kind.
local function runs_of(text)
  local found = {}
  for word in string.gmatch(text, '%S+') do
    local nominal, due, missed = string.match(word, '^(%-?%d+):(%-?%d+):(%d+)$')
    if not nominal then return nil end
    found[#found + 1] = { what = nominal, nominal_ms = tonumber(nominal), due_ms = tonumber(due), missed = tonumber(missed) }
  end
  return found
end

local function skips_of(text)
  local found = {}
  for word in string.gmatch(text, '%S+') do
    local outcome, first, last, count, exact = string.match(word, '^([%a_]+):(%-?%d+):(%-?%d+):(%d+):([01])$')
    if not OUTCOMES[outcome] then return nil end
    found[#found + 1] = { outcome = outcome, first_ms = tonumber(first), last_ms = tonumber(last),
      count = tonumber(count), note = exact == '1' and '' or '+' }
  end
  return found
end

for at = 1, rows do
  local ref, version, expected, next_ms, settled, runs, skipped = row(at)
  local one = { expected = string.format('%.0f', expected), next_ms = next_ms, settled = settled, runs = runs_of(runs), skipped = skips_of(skipped) }
  local refused = not one.runs and 'runs' or not one.skipped and 'skipped' or settled < expected and 'settled'
    or next_ms and next_ms <= settled and 'next_ms'
  if refused then return redis.error_reply('BADARG row ' .. at .. ': ' .. refused) end
  local schedule = read_schedule(ref)
  local current = schedule and schedule.status == 'ACTIVE' and tonumber(schedule.version) == version
    and tonumber(schedule.next_ms) == expected and not schedule.taken
  if current and expected <= now then
    schedule.taken = true
    one.schedule = schedule
    firing[#firing + 1] = one
    reply[at] = 'fired'
  else
    reply[at] = 'stale'
  end
end

-- The earlier runs of the schedule are asked to stop, except one that is caught up with.
local function cancel_open(schedule)
  for _, id in ipairs(redis.call('SRANDMEMBER', OPEN .. schedule.ref, CANCEL_MAX)) do
    local task = id ~= schedule.catching and read_waiting(id)
    if task and task.state == 'RUNNING' then
      if redis.call('HGET', task.key, 'cancel_requested') ~= '1' then
        redis.call('HSET', task.key, 'cancel_requested', '1', 'version', task.version + 1)
      end
      redis.call('SPUBLISH', WAKE, 'cancel ' .. id)
    elseif task and not call_off(task, now) then
      redis.call('SREM', OPEN .. schedule.ref, id)
    end
  end
end

local function hold(schedule, run)
  keep_schedule(schedule, 'held', run.what .. ' ' .. string.format('%.0f', run.missed))
end

local function fire_one(schedule, run)
  local overlap = schedule.overlap or 'skip'
  if overlap == 'allow' or not is_busy(schedule) then
    fire_run(schedule, run, now)
  elseif overlap == 'cancel' then
    drop_held(schedule)
    hold(schedule, run)
    cancel_open(schedule)
    fire_held(schedule, now)
  elseif overlap == 'queue' and not schedule.held then
    hold(schedule, run)
  else
    ledger(schedule, 'skipped_overlap', run.nominal_ms, run.nominal_ms, 1, '')
  end
end

-- What was missed joins the list; of a list that grows faster than it is run the oldest are dropped.
local function fire_catchup(schedule, runs)
  local nominals = {}
  for at, run in ipairs(runs) do nominals[at] = run.what end
  local excess = redis.call('RPUSH', CATCHUP .. schedule.ref, unpack(nominals)) - CATCHUP_MAX
  if excess > 0 then
    local dropped = redis.call('LPOP', CATCHUP .. schedule.ref, excess)
    ledger(schedule, 'catch_up_dropped', tonumber(dropped[1]), tonumber(dropped[#dropped]), #dropped, '')
  end
  if not schedule.catching then follow_catchup(schedule, now) end
end

-- With max_runs the rule is over as soon as it has decided on its last run.
local function fire_rule(schedule, one)
  local kept = {}
  local left = schedule.max_runs and tonumber(schedule.max_runs) - allotted(schedule) or #one.runs
  for at = 1, math.min(left, #one.runs) do kept[at] = one.runs[at] end
  next_at(schedule, one.next_ms)
  if #kept > 1 then fire_catchup(schedule, kept) elseif #kept == 1 then fire_one(schedule, kept[1]) end
  if is_exhausted(schedule) then next_at(schedule, nil) end
  end_if_over(schedule)
end

-- The first of a chain, or the first after a block; a head that was redriven meanwhile makes it instead.
local function fire_chain(schedule, one)
  next_at(schedule, nil)
  if is_chained(schedule) then return end
  if is_exhausted(schedule) or not one.runs[1] then return end_schedule(schedule) end
  fire_head(schedule, one.runs[1], now)
end

keep_clock(now, seen)
for _, one in ipairs(firing) do
  local schedule = one.schedule
  for _, skip in ipairs(one.skipped) do
    ledger(schedule, skip.outcome, skip.first_ms, skip.last_ms, skip.count, skip.note)
  end
  if one.skipped[1] then notify_schedule(schedule, 'missed', one.expected, now) end
  keep_schedule(schedule, 'last_ms', one.settled)
  if schedule.tzdata then keep_schedule(schedule, 'tzdata', tzdata) end
  if schedule.kind == 'delay' then fire_chain(schedule, one) else fire_rule(schedule, one) end
end
schedule_flush()
due_flush()
ack_flush()
verdict_flush()
tell(now)
return reply
