-- waiting: a task that waits (PENDING in its lane, QUEUED in its stream) is taken out of where it
-- waits. Shared by cancel, edit, run_now and reclaim. The record remembers the last `op` that
-- changed it by hand: the same one sent again (its reply was lost) changes nothing more.
local function read_waiting(id)
  local key = TASK .. id
  local v = redis.call('HMGET', key, 'state', 'version', 'lane', 'due_ms', 'entry', 'expires_ms', 'op', 'concurrency', 'held')
  if not v[1] then return nil end
  return {
    id = id, key = key, state = v[1], version = tonumber(v[2]) or 1, lane = lane_of(v[3]), due_ms = tonumber(v[4]),
    entry = v[5], expires_ms = v[6], op = v[7], concurrency = v[8], held = v[9],
  }
end

local function withdraw(task)
  if task.held then
    unhold(task)
  elseif task.state == 'PENDING' then
    due_remove(task.lane, { task.id })
  else
    redis.call('ZREM', WATCH, task.id)
    ack(task.lane.stream, task.entry)
    -- Its window has room again, and no take will say so.
    if redis.call('SISMEMBER', FULL, task.lane.stream) == 1 then redis.call('SPUBLISH', WAKE, 'due 0') end
  end
end
