#!lua
--- trigger: make extra occurrences of a schedule by hand: one now, or those of a range of nominal
--- times. The rule moves nowhere, and none of them makes a successor or is in anybody's way.
--
-- KEYS  clock    hash   of the shard
-- ARGV  now_ms   int    0 = ask the server
--       ref      str    tenant:id
-- ROWS  what     str    makes the id: the nominal time of the rule, or a name of its own
--       nominal  int
--       due      str    ms, or '+ms' after now
-- REPLY 'missing', or an id a row: empty where the task was there before
-- COST  O(rows · log tasks)
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
if not schedule then return { 'missing' } end
local runs, reply = {}, {}
for at = 1, rows do
  local what, nominal, due = row(at)
  local due_ms = due_at(due, now)
  if not due_ms then return redis.error_reply('BADARG row ' .. at .. ': due') end
  runs[at] = { what = what, nominal_ms = nominal, due_ms = due_ms }
end

keep_clock(now, seen)
for at, run in ipairs(runs) do
  local id = make_occurrence(schedule, run, now)
  -- Not one of the rule's own: it is not waited for.
  if id then redis.call('SREM', OPEN .. ref, id) end
  if id then ledger(schedule, 'fired', run.nominal_ms, run.nominal_ms, 1, 'by_hand') end
  reply[at] = id or ''
end
schedule_flush()
due_flush()
tell(now)
return reply
