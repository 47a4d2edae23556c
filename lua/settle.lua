#!lua flags=allow-oom
--- settle: record how attempts ended: the verdict, or the next due time.
--
-- KEYS  clock    hash   of the shard
-- ARGV  now_ms   int    0 = ask the server
-- ROWS  id       str
--       fence    str    of the attempt
--       outcome  str    SUCCEEDED FAILED TIMED_OUT CANCELLED; LOST where a process of its own died
--       retry_ms opt    wait until the next attempt; without it a failure is final
--       reason   str    of a final failure
--       error    str    JSON {type, message, traceback}; may be empty
--       result   bytes  of a success; may be empty
--       failure  str    fingerprint of the error of a final failure; may be empty
-- REPLY a word a row: the state the task has now, 'stale' (another fence is in force), 'conflict'
--       (the same fence ended otherwise before)
-- COST  O(rows · log tasks)
--
-- The same fence and outcome again is answered as the first time and changes nothing.
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
local reply, ending, settled = {}, {}, {}

for at = 1, rows do
  local id, fence, outcome, retry_ms, reason, error, result, failure = row(at)
  if not OUTCOMES[outcome] or outcome == 'RELEASED' then
    return redis.error_reply('BADARG row ' .. at .. ': outcome')
  end
  local task = settled[id] or read_run(id)
  local word = refusal(task, fence, outcome)
  if settled[id] and not word then word = task.will == outcome and task.state_after or 'conflict' end
  if word then
    reply[at] = word
  else
    local due_ms = retry_ms and now + retry_ms
    task.will = outcome
    task.state_after = target_state(task, outcome, due_ms)
    settled[id] = task
    reply[at] = task.state_after
    ending[#ending + 1] = {
      task = task, outcome = outcome, due_ms = due_ms, reason = reason, error = error, result = result, failure = failure,
    }
  end
end

keep_clock(now, seen)
for _, one in ipairs(ending) do end_attempt(one.task, one, now) end
run_flush(now)
return reply
