#!lua flags=allow-oom
--- retime: move the next nominal time of schedules, and nothing else of them: their zone's clock is set
--- by other rules now. One that cannot be planned any more is blocked, so that it holds up no other.
--
-- KEYS  clock     hash   of the shard
-- ARGV  now_ms    int    0 = ask the server
--       tzdata    str    release of the zone data that the times were computed with
-- ROWS  ref       str    tenant:id
--       version   int    of the definition the time was computed from
--       expected  opt    the stored next_ms; empty = there is none
--       next_ms   opt    the new one; empty = the rule is over
--       broken    str    why it cannot be planned; empty = it can
-- REPLY a word a row: 'retimed', 'blocked', 'stale' (it is not as it was read), 'owed' (fire first)
-- COST  O(rows · log schedules)
-- @include lib/clock
-- @include lib/keys
-- @include lib/move
-- @include lib/occurrence
local now, seen = read_clock(now_ms)
keep_clock(now, seen)
local reply = {}
for at = 1, rows do
  local ref, version, expected, next_ms, broken = row(at)
  local schedule = read_schedule(ref)
  local current = schedule and tonumber(schedule.version) == version and tonumber(schedule.next_ms or '') == expected
  if not current then
    reply[at] = 'stale'
  elseif broken ~= '' then
    if schedule.status == 'ACTIVE' then turn(schedule, 'BLOCKED', broken) end
    next_at(schedule, nil)
    reply[at] = 'blocked'
  elseif (expected and expected <= now) or (next_ms and next_ms <= now) then
    reply[at] = 'owed'
  else
    if schedule.tzdata then keep_schedule(schedule, 'tzdata', tzdata) end
    if expected then
      next_at(schedule, next_ms)
      end_if_over(schedule)
    end
    reply[at] = 'retimed'
  end
end
schedule_flush()
local earliest = tonumber(redis.call('ZRANGE', SCHEDULES, 0, 0, 'WITHSCORES')[2])
if earliest and earliest < math.huge then redis.call('SPUBLISH', WAKE, 'due ' .. string.format('%.0f', earliest)) end
return reply
