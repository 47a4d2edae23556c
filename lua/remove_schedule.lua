#!lua flags=allow-oom
--- remove_schedule: the definition goes; what waits is cancelled, what runs may finish, without successor.
--
-- KEYS  clock     hash   of the shard
-- ARGV  now_ms    int    0 = ask the server
--       ref       str    tenant:id
--       expected  opt    If-Match
-- REPLY word, status, version: 'removed', 'missing', 'version'; 'more' = ask again
-- COST  O(open occurrences), at most 500 a call
-- @include lib/clock
-- @include lib/keys
-- @include lib/move
-- @include lib/due
-- @include lib/acks
-- @include lib/occurrence
-- @include lib/verdict
-- @include lib/waiting
-- @include lib/head
local CANCEL_MAX = 500
local now, seen = read_clock(now_ms)
local schedule = read_schedule(ref)
if not schedule then return { 'missing', '', 0 } end
local function answer(word) return { word, schedule.status, tonumber(schedule.version) } end
if expected and expected ~= tonumber(schedule.version) then return answer('version') end

keep_clock(now, seen)
redis.call('DEL', CATCHUP .. ref)
turn(schedule, 'ENDED')
keep_schedule(schedule, 'held', nil)
keep_schedule(schedule, 'catching', nil)
next_at(schedule, nil)
local open = redis.call('SRANDMEMBER', OPEN .. ref, CANCEL_MAX)
for _, id in ipairs(open) do
  local task = read_waiting(id)
  redis.call('SREM', OPEN .. ref, id)
  if task and (task.state == 'PENDING' or task.state == 'QUEUED') then
    withdraw(task)
    move(task, 'CANCELLED', 'finished_ms', now, 'cancel_requested', '1')
    conclude(task, now)
  end
end
schedule_flush()
local word = #open == CANCEL_MAX and 'more' or 'removed'
if word == 'removed' then
  redis.call('ZREM', SCHEDULES, ref)
  redis.call('UNLINK', schedule.key, schedule.key .. ':body', OPEN .. ref, LEDGER .. ref)
end
ack_flush()
due_flush()
verdict_flush()
tell(now)
return answer(word)
