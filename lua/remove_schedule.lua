#!lua flags=allow-oom
--- remove_schedule: the definition goes; what waits is cancelled, what runs may finish, without successor.
--
-- KEYS  clock     hash   of the shard
-- ARGV  now_ms    int    0 = ask the server
--       ref       str    tenant:id
--       expected  opt    If-Match
--       op        str    names this call; the same one again is answered again
-- REPLY word, status, version: 'removed', 'missing', 'version'; 'more' = ask again
-- COST  O(open occurrences), at most 500 a call
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
local CANCEL_MAX, MEMORY_MS = 500, 60000
local now, seen = read_clock(now_ms)
local schedule = read_schedule(ref)
if not schedule then
  local before, version = string.match(redis.call('GET', STUB .. ref) or '', '^%d+ (%S+) (%d+)$')
  if before == op then return { 'removed', 'ENDED', tonumber(version) } end
  return { 'missing', '', 0 }
end
local function answer(word) return { word, schedule.status, tonumber(schedule.version) } end
if expected and expected ~= tonumber(schedule.version) then return answer('version') end

keep_clock(now, seen)
redis.call('DEL', CATCHUP .. ref)
turn(schedule, 'ENDED')
keep_schedule(schedule, 'held', nil)
keep_schedule(schedule, 'catching', nil)
next_at(schedule, nil)
local left = CANCEL_MAX
for _, set in ipairs({ OPEN .. ref, EXTRA .. ref }) do
  for _, id in ipairs(left > 0 and redis.call('SRANDMEMBER', set, left) or {}) do
    local task = read_waiting(id)
    redis.call('SREM', set, id)
    if task then call_off(task, now) end
    left = left - 1
  end
end
schedule_flush()
local word = left == 0 and 'more' or 'removed'
if word == 'removed' then
  redis.call('ZREM', SCHEDULES, ref)
  redis.call('UNLINK', schedule.key, schedule.key .. ':body', OPEN .. ref, EXTRA .. ref, LEDGER .. ref)
  local memory = string.format('%.0f', now + MEMORY_MS) .. ' ' .. op .. ' ' .. schedule.version
  redis.call('SET', STUB .. ref, memory, 'PX', MEMORY_MS)
end
ack_flush()
due_flush()
verdict_flush()
tell(now)
return answer(word)
