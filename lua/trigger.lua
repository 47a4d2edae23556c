#!lua
--- trigger: make extra occurrences of a schedule by hand, whatever its state: one now, or those of a
--- range of nominal times. The rule moves nowhere; none of them makes a successor, is in anybody's way,
--- or counts as a run.
--
-- KEYS  clock    hash   of the shard
-- ARGV  now_ms   int    0 = ask the server
--       ref      str    tenant:id
--       op       str    names this call; the same one again is answered again
-- ROWS  what     str    makes the id: the nominal time of the rule, or 'x' and a name of its own
--       nominal  int
--       due      str    ms, or '+ms' after now
-- REPLY 'missing', or an id a row: empty where the task was there before
-- COST  O(rows · log tasks)
-- @include lib/clock
-- @include lib/keys
-- @include lib/move
-- @include lib/due
-- @include lib/notify
-- @include lib/occurrence
local now, seen = read_clock(now_ms)
local schedule = read_schedule(ref)
local runs, reply = {}, {}
for at = 1, rows do
  local what, nominal, due = row(at)
  local due_ms = due_at(due, now)
  if not due_ms then return redis.error_reply('BADARG row ' .. at .. ': due') end
  if not string.match(what, '^%-?%d+$') and not string.match(what, '^x%w+$') then
    return redis.error_reply('BADARG row ' .. at .. ': what')
  end
  runs[at] = { what = what, nominal_ms = nominal, due_ms = due_ms, by_hand = op }
end
if op == '' then return redis.error_reply('BADARG op') end
if not schedule then return { 'missing' } end

keep_clock(now, seen)
for at, run in ipairs(runs) do
  local id = make_occurrence(schedule, run, now)
  if id then
    local named = string.byte(run.what) == 120
    ledger(schedule, 'fired', run.nominal_ms, run.nominal_ms, 1, named and 'by_hand:' .. run.what or 'by_hand')
  else
    local before = occurrence_id(schedule, run.what)
    if redis.call('HGET', TASK .. before, 'by_hand') == op then id = before end
  end
  reply[at] = id or ''
end
schedule_flush()
due_flush()
tell(now)
return reply
