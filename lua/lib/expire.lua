-- expire: a task whose `expires_ms` passed before its first start fails with reason `expired`.
local EXPIRE_MAX = 100

local function expire(task, now)
  local error = '{"type":"Expired","message":"expires_at passed before the first start"}'
  if move(task, 'FAILED', 'finished_ms', now, 'reason', 'expired', 'failure', 'expired', 'error', error) then
    conclude(task, now)
    redis.call('ZREM', EXPIRY, task.id)
  end
end

-- Wherever the task waits: in a lane, in a parked stream's lane, or in a stream.
local function expire_due(now)
  local ids = redis.call('ZRANGE', EXPIRY, '-inf', now, 'BYSCORE', 'LIMIT', 0, EXPIRE_MAX)
  for _, id in ipairs(ids) do
    local v = redis.call('HMGET', TASK .. id, 'state', 'version', 'lane', 'attempt', 'entry')
    local task = { id = id, key = TASK .. id, state = v[1], version = tonumber(v[2]) or 1, lane = v[3] and lane_of(v[3]) }
    local waits = not v[4] and (v[1] == 'PENDING' or v[1] == 'QUEUED')
    if waits and v[1] == 'PENDING' then
      due_remove(task.lane, { id })
    elseif waits then
      redis.call('ZREM', WATCH, id)
      redis.call('XDEL', READY .. task.lane.stream, v[5])
    end
    if waits then expire(task, now) else redis.call('ZREM', EXPIRY, id) end
  end
  return #ids
end
