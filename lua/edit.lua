#!lua
--- edit: change a task that waits; one that was dispatched goes back into the index.
--
-- KEYS  clock       hash   of the shard
-- ARGV  now_ms      int    0 = ask the server
--       id          str
--       tenant      str    whose task it must be
--       version     opt    If-Match
--       lane        str    as it shall be; empty = unchanged
--       due         str    ms, or '+ms' after now; empty = unchanged
--       payload     bytes  '=bytes'; empty = unchanged
--       options     str    '=JSON'; empty = unchanged
--       expires     str    '=ms', '=' none; empty = unchanged
--       lease       str    '=ms', '=' none; empty = unchanged
--       concurrency str    '=hash:limit', '=' none; empty = unchanged
--       wants       str    '=words', '=' none; empty = unchanged
--       op          str    names this call; the same one again is answered again
-- REPLY word, state, version: 'edited', 'missing', 'version', 'state' (it runs or has finished)
-- COST  O(log tasks)
-- @include lib/clock
-- @include lib/keys
-- @include lib/move
-- @include lib/due
-- @include lib/acks
-- @include lib/unhold
-- @include lib/waiting
-- @include lib/amend
local now, seen = read_clock(now_ms)
local task = read_waiting(id)
if not task or task.lane.tenant ~= tenant then return { 'missing' } end
if op == task.op then return { 'edited', task.state, task.version } end
if version and version ~= task.version then return { 'version', task.state, task.version } end
if task.state ~= 'PENDING' and task.state ~= 'QUEUED' then return { 'state', task.state, task.version } end
local refused, to_lane = check_amendment(task)
local to_due = due == '' and task.due_ms or due_at(due, now)
if refused or not to_due then return redis.error_reply('BADARG ' .. (refused or 'due')) end

keep_clock(now, seen)
withdraw(task)
local set, from = amend(task, 'lane', to_lane.text, 'due_ms', to_due, 'op', op), task.lane
if task.state == 'QUEUED' then
  move(task, 'PENDING', unpack(set))
else
  task.version = task.version + 1
  redis.call('HSET', task.key, 'version', task.version, unpack(set))
end
transfer(task, from, to_lane)
if expires ~= '' then
  redis.call('ZREM', EXPIRY, id)
  if expires ~= '=' and redis.call('HEXISTS', task.key, 'attempt') == 0 then
    redis.call('ZADD', EXPIRY, string.sub(expires, 2), id)
  end
end
due_add(to_lane, id, to_due)
ack_flush()
due_flush()
tell(now)
return { 'edited', task.state, task.version }
