-- head: the occurrence of a fixed-delay schedule that its chain hangs on, and what the verbs of
-- schedules share: the memory of the last call, what is still owed, and calling occurrences off.
local function waiting_head(schedule)
  local task = schedule.head and read_waiting(schedule.head)
  return task and (task.state == 'PENDING' or task.state == 'QUEUED') and task or nil
end

-- True while the chain hangs on its head: the verdict on it makes the next.
local function is_chained(schedule)
  return schedule.kind == 'delay' and schedule.head ~= nil
    and redis.call('SISMEMBER', OPEN .. schedule.ref, schedule.head) == 1
end

-- Puts it back into the index with another due time (and, where given, another lane).
local function put_head(task, due_ms, lane, ...)
  withdraw(task)
  local to = lane or task.lane
  if task.state == 'QUEUED' then
    move(task, 'PENDING', 'due_ms', due_ms, 'lane', to.text, ...)
  else
    redis.call('HSET', task.key, 'version', task.version + 1, 'due_ms', due_ms, 'lane', to.text, ...)
  end
  transfer(task, task.lane, to)
  due_add(to, task.id, due_ms)
end

-- A waiting head is held, or let go at the later of its time and now.
local function hold_head(schedule)
  local task = waiting_head(schedule)
  if not task or task.due_ms == HELD_MS then return end
  put_head(task, HELD_MS, nil, 'held_due_ms', task.due_ms)
end

local function free_head(schedule, now)
  local task = waiting_head(schedule)
  if not task or task.due_ms ~= HELD_MS then return end
  local due_ms = tonumber(redis.call('HGET', task.key, 'held_due_ms')) or now
  redis.call('HDEL', task.key, 'held_due_ms')
  put_head(task, math.max(due_ms, now))
end

-- An occurrence that waits is cancelled; false where it does not wait.
local function call_off(task, now)
  if task.state ~= 'PENDING' and task.state ~= 'QUEUED' then return false end
  withdraw(task)
  move(task, 'CANCELLED', 'finished_ms', now, 'cancel_requested', '1')
  if task.expires_ms then redis.call('ZREM', EXPIRY, task.id) end
  conclude(task, now)
  return true
end

-- True while a nominal time under the stored definition is owed: it is fired before anything changes.
local function is_owed(schedule, now)
  local next_ms = tonumber(schedule.next_ms)
  return schedule.status == 'ACTIVE' and next_ms ~= nil and next_ms <= now
end

-- The schedule remembers the last call that changed it: sent again (its reply was lost) it changes
-- nothing, and is answered with the same word.
local function answered(schedule, op)
  local before, word = string.match(schedule.op or '', '^(%S+) (%S+)$')
  return before == op and word or nil
end

local function remember(schedule, op, word) keep_schedule(schedule, 'op', op .. ' ' .. word) end
