#!lua
--- redrive: give a failed or cancelled task a new life, with a new budget of attempts and a higher
--- fence, changed on the way where asked; its old attempts stay on record.
--
-- KEYS  clock    hash   of the shard
-- ARGV  now_ms   int    0 = ask the server
--       id       str
--       tenant   str    whose task it must be
--       version  opt    If-Match
--       due      str    ms, or '+ms' after now
--       lane     str    as it shall be; empty = unchanged
--       payload  bytes  '=bytes'; empty = unchanged
--       options  str    '=JSON'; empty = unchanged
--       expires  str    '=' none; empty = unchanged (it has had its first start)
--       lease    str    '=ms', '=' none; empty = unchanged
--       concurrency str   '=hash:limit', '=' none; empty = unchanged
--       wants    str    '=words', '=' none; empty = unchanged
--       op       str    names this call; the same one again is answered again
-- REPLY word, state, version: 'redriven', 'missing', 'version', 'state' (it waits, runs or succeeded)
-- COST  O(log tasks)
-- @include lib/clock
-- @include lib/keys
-- @include lib/move
-- @include lib/due
-- @include lib/dead
-- @include lib/notify
-- @include lib/occurrence
-- @include lib/verdict
-- @include lib/waiting
-- @include lib/amend
local now, seen = read_clock(now_ms)
local task = read_waiting(id)
if not task or task.lane.tenant ~= tenant then return { 'missing' } end
if op == task.op then return { 'redriven', task.state, task.version } end
if version and version ~= task.version then return { 'version', task.state, task.version } end
if task.state ~= 'FAILED' and task.state ~= 'CANCELLED' then return { 'state', task.state, task.version } end
local due_ms = due_at(due, now)
local refused, to_lane = check_amendment(task)
if refused or not due_ms then return redis.error_reply('BADARG ' .. (refused or 'due')) end

keep_clock(now, seen)
unconclude(task)
local v = redis.call('HMGET', task.key, 'attempt', 'life', 'schedule', 'occurrence', 'by_hand')
local gone = { 'finished_ms', 'reason', 'failure', 'cancel_requested', 'lost', 'expires_ms' }
redis.call('HDEL', task.key, unpack(gone))
local from, life = task.lane, (tonumber(v[2]) or 1) + 1
local set = amend(task, 'lane', to_lane.text, 'due_ms', due_ms, 'life', life, 'uncounted', tonumber(v[1]) or 0, 'op', op)
move(task, 'PENDING', unpack(set))
transfer(task, from, to_lane)
due_add(to_lane, id, due_ms)
-- An occurrence is waited for again, where its schedule is still the one that made it. The head of a
-- chain makes the next one itself: none is owed beside it.
local schedule = v[3] and read_schedule(v[3])
if schedule and occurrence_id(schedule, v[4]) == id then
  redis.call('SADD', (v[5] and EXTRA or OPEN) .. v[3], id)
  if schedule.head == id and schedule.next_ms then next_at(schedule, nil) end
  schedule_flush()
end
due_flush()
tell(now)
return { 'redriven', task.state, task.version }
