#!lua flags=allow-oom
--- resume_schedule: an ACTIVE schedule again; nothing is owed for the time of the pause.
--
-- KEYS  clock     hash   of the shard
-- ARGV  now_ms    int    0 = ask the server
--       ref       str    tenant:id
--       expected  opt    If-Match
--       next_ms   opt    first nominal time after now; empty = none (or the chain's head makes it)
-- REPLY word, status, version: 'resumed' now or before, 'missing', 'version', 'state' (it has ended)
-- COST  O(log tasks)
-- @include lib/clock
-- @include lib/keys
-- @include lib/move
-- @include lib/due
-- @include lib/acks
-- @include lib/occurrence
-- @include lib/verdict
-- @include lib/waiting
-- @include lib/head
local now, seen = read_clock(now_ms)
local schedule = read_schedule(ref)
if not schedule then return { 'missing', '', 0 } end
local function answer(word) return { word, schedule.status, tonumber(schedule.version) } end
if schedule.status == 'ACTIVE' then return answer('resumed') end
if expected and expected ~= tonumber(schedule.version) then return answer('version') end
if schedule.status == 'ENDED' then return answer('state') end

keep_clock(now, seen)
turn(schedule, 'ACTIVE')
keep_schedule(schedule, 'version', tonumber(schedule.version) + 1)
local chained = schedule.kind == 'delay' and schedule.head and redis.call('SISMEMBER', OPEN .. ref, schedule.head) == 1
if chained then
  free_head(schedule, now)
  next_at(schedule, nil)
elseif next_ms then
  next_at(schedule, next_ms)
else
  end_schedule(schedule)
end
fire_held(schedule, now)
schedule_flush()
ack_flush()
due_flush()
if schedule.next_ms then redis.call('SPUBLISH', WAKE, 'due ' .. schedule.next_ms) end
tell(now)
return answer('resumed')
