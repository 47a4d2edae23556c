#!lua flags=allow-oom
--- cancel: final at once before a start; a request to a running task.
--
-- KEYS  clock    hash   of the shard
-- ARGV  now_ms   int    0 = ask the server
--       id       str
--       tenant   str    whose task it must be
--       version  opt    If-Match
--       op       str    names this call; the same one again is answered again
-- REPLY word, state, version: 'cancelled' now or before; 'requested' it runs; 'finished' too late;
--       'missing'; 'version' another one is stored
-- COST  O(log tasks)
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
local now, seen = read_clock(now_ms)
local task = read_waiting(id)
if not task or task.lane.tenant ~= tenant then return { 'missing' } end
if op == task.op then return { task.state == 'CANCELLED' and 'cancelled' or 'requested', task.state, task.version } end
if version and version ~= task.version then return { 'version', task.state, task.version } end
if task.state == 'CANCELLED' then return { 'cancelled', task.state, task.version } end
if task.state == 'SUCCESS' or task.state == 'FAILED' then return { 'finished', task.state, task.version } end

keep_clock(now, seen)
if task.state == 'RUNNING' then
  if redis.call('HGET', task.key, 'cancel_requested') ~= '1' then
    task.version = task.version + 1
    redis.call('HSET', task.key, 'cancel_requested', '1', 'version', task.version, 'op', op)
    redis.call('SPUBLISH', WAKE, 'cancel ' .. id)
  end
  return { 'requested', task.state, task.version }
end
withdraw(task)
move(task, 'CANCELLED', 'finished_ms', now, 'cancel_requested', '1', 'op', op)
if task.expires_ms then redis.call('ZREM', EXPIRY, id) end
conclude(task, now)
ack_flush()
due_flush()
verdict_flush()
tell(now)
return { 'cancelled', task.state, task.version }
