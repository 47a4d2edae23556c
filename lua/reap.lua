#!lua flags=allow-oom
--- reap: end attempts whose lease ran out: LOST (or TIMED_OUT, of a run that was left to a callback),
--- then the next due time or the verdict.
--
-- KEYS  clock    hash   of the shard
-- ARGV  now_ms   int    0 = ask the server
-- ROWS  id       str
--       fence    str    of the attempt whose lease was found expired
--       outcome  str    LOST TIMED_OUT
--       retry_ms opt    wait until the next attempt; without it the task fails
--       reason   str    of a final failure
--       error    str    JSON
--       failure  str    fingerprint of the error of a final failure; may be empty
-- REPLY a word a row: the state now, 'stale', or 'alive' (renewed meanwhile, or leases are held)
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
local reply, reaping, taken = {}, {}, {}
for at = 1, rows do
  local _, _, outcome = row(at)
  if outcome ~= 'LOST' and outcome ~= 'TIMED_OUT' then return redis.error_reply('BADARG row ' .. at .. ': outcome') end
end
keep_clock(now, seen)

for at = 1, rows do
  local id, fence, outcome, retry_ms, reason, error, failure = row(at)
  local task = not taken[id] and read_run(id)
  local until_ms = tonumber(redis.call('ZSCORE', WATCH, id))
  if not task or task.fence ~= fence or (task.state ~= 'RUNNING' and task.outcome ~= outcome) then
    reply[at] = 'stale'
  elseif task.state ~= 'RUNNING' then
    reply[at] = task.state   -- reaped before: answered again
  elseif now < seen.hold_ms or (until_ms and until_ms > now) then
    reply[at] = 'alive'
  else
    taken[id] = true
    reaping[#reaping + 1] = {
      task = task, outcome = outcome, due_ms = retry_ms and now + retry_ms, reason = reason, error = error,
      result = '', failure = failure, at = at,
    }
  end
end

for _, one in ipairs(reaping) do reply[one.at] = end_attempt(one.task, one, now) end
run_flush(now)
return reply
