#!lua flags=allow-oom
--- run_now: a waiting task becomes due at once.
--
-- KEYS  clock    hash   of the shard
-- ARGV  now_ms   int    0 = ask the server
--       id       str
--       tenant   str    whose task it must be
--       version  opt    If-Match
--       op       str    names this call; the same one again is answered again
-- REPLY word, state, version: 'edited', 'missing', 'version', 'state' (it runs or has finished)
-- COST  O(log tasks)
-- @include lib/clock
-- @include lib/keys
-- @include lib/move
-- @include lib/due
-- @include lib/acks
-- @include lib/unhold
-- @include lib/waiting
local now, seen = read_clock(now_ms)
local task = read_waiting(id)
if not task or task.lane.tenant ~= tenant then return { 'missing' } end
if op == task.op then return { 'edited', task.state, task.version } end
if version and version ~= task.version then return { 'version', task.state, task.version } end
if task.state ~= 'PENDING' and task.state ~= 'QUEUED' then return { 'state', task.state, task.version } end

keep_clock(now, seen)
withdraw(task)
if task.state == 'QUEUED' then
  move(task, 'PENDING', 'due_ms', math.min(now, task.due_ms), 'op', op)
else
  task.version = task.version + 1
  redis.call('HSET', task.key, 'version', task.version, 'due_ms', math.min(now, task.due_ms), 'op', op)
end
due_add(task.lane, id, math.min(now, task.due_ms))
ack_flush()
due_flush()
tell(now)
return { 'edited', task.state, task.version }
