#!lua flags=allow-oom
--- release: hand runs back, not counted as attempts; they start elsewhere at once, or after a while.
--
-- KEYS  clock    hash   of the shard
-- ARGV  now_ms   int    0 = ask the server
-- ROWS  id       str
--       fence    str    of the attempt
--       wait_ms  opt    until it is due again; empty = it stays due as it was
--       why      str    it is postponed; may be empty
-- REPLY a word a row, as settle
-- COST  O(rows · log tasks)
-- @include lib/clock
-- @include lib/keys
-- @include lib/move
-- @include lib/due
-- @include lib/acks
-- @include lib/dead
-- @include lib/notify
-- @include lib/occurrence
-- @include lib/verdict
-- @include lib/run
local now, seen = read_clock(now_ms)
local reply, releasing = {}, {}

for at = 1, rows do
  local id, fence, wait_ms, why = row(at)
  local task = read_run(id)
  reply[at] = refusal(task, fence, 'RELEASED') or target_state(task, 'RELEASED')
  if task and task.state == 'RUNNING' and task.fence == fence then
    releasing[id] = { task = task, outcome = 'RELEASED', due_ms = wait_ms and now + wait_ms, error = '', result = '', postponed = why }
  end
end

keep_clock(now, seen)
for _, one in pairs(releasing) do end_attempt(one.task, one, now) end
run_flush(now)
return reply
