-- run: reading the record of a run, and ending one attempt with its outcome. Shared by settle,
-- release and reap, so that an attempt can end in one way only.
local OUTCOMES = {
  SUCCEEDED = true, FAILED = true, TIMED_OUT = true, LOST = true, RELEASED = true, CANCELLED = true,
}
local unwatched = {}

local function read_run(id)
  local key = TASK .. id
  local v = redis.call('HMGET', key, 'state', 'version', 'lane', 'fence', 'entry', 'cancel_requested', 'lost',
    'attempt', 'payload', 'body', 'outcome', 'error', 'wants', 'extra', 'concurrency')
  if not v[1] then return nil end
  return {
    id = id, key = key, state = v[1], version = tonumber(v[2]) or 1, lane = lane_of(v[3]), fence = v[4],
    entry = v[5], cancelled = v[6] == '1', lost = tonumber(v[7]) or 0, attempt = v[8],
    stored = RECORD_BYTES + #(v[9] or '') + (v[10] or 0) + (v[14] or 0), outcome = v[11], old_error = v[12] or '',
    wants = v[13], concurrency = v[15],
    bytes = false, due_ms = false, will = false, state_after = false,
  }
end

-- The word that answers an outcome which cannot be applied, or nil if it can.
local function refusal(task, fence, outcome)
  if not task then return 'stale' end
  if task.fence ~= fence then return 'stale' end
  if task.state == 'RUNNING' then return nil end
  -- The reaper was first: nobody owns this fence. Or its owner said so himself, and says it again.
  if task.outcome == 'LOST' then return outcome == 'LOST' and task.state or 'stale' end
  if task.outcome == outcome then return task.state end
  -- A cancelled run that was reported as failed or released is recorded as CANCELLED.
  if task.state == 'CANCELLED' and task.outcome == 'CANCELLED' and outcome ~= 'SUCCEEDED' then return task.state end
  return 'conflict'
end

local function target_state(task, outcome, due_ms)
  if outcome == 'SUCCEEDED' then return 'SUCCESS' end
  if task.cancelled or outcome == 'CANCELLED' then return 'CANCELLED' end
  if outcome == 'RELEASED' or due_ms then return 'PENDING' end
  return 'FAILED'
end

-- What is left when an attempt ended: the next waits, or the verdict stands.
local function close(task, to, now)
  if to == 'PENDING' then due_add(task.lane, task.id, task.due_ms) else conclude(task, now) end
  unwatched[#unwatched + 1] = task.id
  ack(task.lane.stream, task.entry)
  return to
end

-- ending: {outcome, due_ms, error, result, reason, failure, postponed}. Returns the state the task has now.
local function end_attempt(task, ending, now)
  local to = target_state(task, ending.outcome, ending.due_ms)
  if to == 'SUCCESS' and task.lost == 0 and ending.error == '' then
    task.bytes = task.stored + #task.old_error + #ending.result   -- as stored_bytes would count
    if ending.result == '' then
      move(task, to, 'outcome', 'SUCCEEDED', 'ended_ms', now, 'finished_ms', now)
    else
      move(task, to, 'outcome', 'SUCCEEDED', 'ended_ms', now, 'finished_ms', now, 'result', ending.result)
    end
    return close(task, to, now)
  end
  local outcome = to == 'CANCELLED' and 'CANCELLED' or ending.outcome
  local fields = { 'outcome', outcome, 'ended_ms', now }
  local function keep(name, value)
    fields[#fields + 1] = name
    fields[#fields + 1] = value
  end
  if ending.error ~= '' then keep('error', ending.error) end
  if ending.outcome == 'RELEASED' then keep('uncounted', (tonumber(redis.call('HGET', task.key, 'uncounted')) or 0) + 1) end
  if ending.postponed and ending.postponed ~= '' then keep('postponed', ending.postponed) end
  if ending.outcome == 'LOST' then keep('lost', task.lost + 1) elseif task.lost > 0 and ending.outcome ~= 'RELEASED' then keep('lost', 0) end
  if to == 'PENDING' then
    task.due_ms = ending.due_ms or tonumber(redis.call('HGET', task.key, 'due_ms'))
    keep('due_ms', task.due_ms)
  else
    keep('finished_ms', now)
    if to == 'FAILED' then
      keep('reason', ending.reason)
      if ending.failure ~= '' then keep('failure', ending.failure) end
    end
    if ending.result ~= '' and to == 'SUCCESS' then keep('result', ending.result) end
  end
  move(task, to, unpack(fields))
  return close(task, to, now)
end

local function run_flush(now)
  if #unwatched > 0 then redis.call('ZREM', WATCH, unpack(unwatched)) end
  ack_flush()
  due_flush()
  verdict_flush()
  tell(now)
end
