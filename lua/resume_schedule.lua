#!lua flags=allow-oom
--- resume_schedule: an ACTIVE schedule again; nothing is owed for the time of the pause.
--
-- KEYS  clock     hash   of the shard
-- ARGV  now_ms    int    0 = ask the server
--       ref       str    tenant:id
--       expected  opt    If-Match
--       op        str    names this call; the same one again is answered again
--       next_ms   opt    first nominal time after now; empty = none (or the chain's head makes it)
--       tzdata    str    release of the zone data that next_ms was computed with
-- REPLY word, status, version: 'resumed' now or before, 'missing', 'version', 'state' (it has ended),
--       'late' (next_ms is past: ask again)
-- COST  O(log tasks)
-- @include lib/clock
-- @include lib/keys
-- @include lib/move
-- @include lib/due
-- @include lib/acks
-- @include lib/notify
-- @include lib/occurrence
-- @include lib/unhold
-- @include lib/waiting
-- @include lib/head
local now, seen = read_clock(now_ms)
local schedule = read_schedule(ref)
if not schedule then return { 'missing', '', 0 } end
local function answer(word) return { word, schedule.status, tonumber(schedule.version) } end
if answered(schedule, op) or schedule.status == 'ACTIVE' then return answer('resumed') end
if expected and expected ~= tonumber(schedule.version) then return answer('version') end
if schedule.status == 'ENDED' then return answer('state') end
if next_ms and next_ms <= now then return answer('late') end

keep_clock(now, seen)
turn(schedule, 'ACTIVE')
keep_schedule(schedule, 'version', tonumber(schedule.version) + 1)
remember(schedule, op, 'resumed')
if schedule.tzdata then keep_schedule(schedule, 'tzdata', tzdata) end
local held_next_ms = tonumber(schedule.held_next_ms)
keep_schedule(schedule, 'held_next_ms', nil)
if is_chained(schedule) then
  free_head(schedule, now)
  next_at(schedule, nil)
elseif schedule.kind == 'delay' then
  if held_next_ms then next_ms = math.max(held_next_ms, now) end
  if next_ms and not is_exhausted(schedule) then next_at(schedule, next_ms) else end_schedule(schedule) end
else
  next_at(schedule, not is_exhausted(schedule) and next_ms or nil)
  if not schedule.catching then follow_catchup(schedule, now) end
  fire_held(schedule, now)
  end_if_over(schedule)
end
schedule_flush()
ack_flush()
due_flush()
if schedule.next_ms then redis.call('SPUBLISH', WAKE, 'due ' .. schedule.next_ms) end
tell(now)
return answer('resumed')
