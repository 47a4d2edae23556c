#!lua flags=allow-oom
--- reclaim: dispatched tasks that nobody took: their entry is gone, their route has no
--- worker, or they may not run any more (paused).
--- They go back into the index; one whose entry still waits is watched for longer.
--
-- KEYS  clock    hash   of the shard
-- ARGV  now_ms   int    0 = ask the server
-- ROWS  id       str    found overdue in the watch index
-- REPLY a word a row: 'PENDING' (back in the index), 'waits', 'stray' (not QUEUED: unwatched)
-- COST  O(rows · log tasks)
-- @include lib/clock
-- @include lib/keys
-- @include lib/move
-- @include lib/due
-- @include lib/acks
-- @include lib/unhold
-- @include lib/waiting
-- @include lib/ready
-- @include lib/rules
local now, seen = read_clock(now_ms)
keep_clock(now, seen)
local reply = {}

-- True while the entry is in its stream and was not delivered to anybody.
local function still_waits(task)
  local key = READY .. task.lane.stream
  if not task.entry or not is_live(task.lane.route, now) or paused_by(task.lane.queue, task.lane.tenant) then return false end
  local found = redis.pcall('XRANGE', key, task.entry, task.entry)
  if found.err or #found == 0 then return false end
  local pending = redis.pcall('XPENDING', key, 'workers', task.entry, task.entry, 1)
  return pending.err ~= nil or #pending == 0
end

for at = 1, rows do
  local id = row(at)
  local task = read_waiting(id)
  local until_ms = tonumber(redis.call('ZSCORE', WATCH, id))
  if until_ms and until_ms > now then
    reply[at] = 'waits'
  elseif not task or (task.state ~= 'QUEUED' and task.state ~= 'RUNNING') then
    redis.call('ZREM', WATCH, id)
    reply[at] = 'stray'
  elseif task.state == 'RUNNING' then
    reply[at] = 'waits'
  elseif still_waits(task) then
    redis.call('ZADD', WATCH, now + TAKE_BY_MS, id)
    if redis.call('ZADD', UNREAD, 'NX', 0, task.lane.stream) == 1 then redis.call('SPUBLISH', WAKE, 'work') end
    reply[at] = 'waits'
  else
    withdraw(task)
    move(task, 'PENDING')
    due_add(task.lane, id, task.due_ms)
    reply[at] = 'PENDING'
  end
end
ack_flush()
due_flush()
tell(now)
return reply
