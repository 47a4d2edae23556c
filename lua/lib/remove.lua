-- remove: a finished record leaves, with all that hangs on it: by retention or by hand. What leaves
-- before its idempotency window ends leaves a stub. The locals keyed_ms and unkeyed_ms (how long a key,
-- and an id without one, is remembered after the creation) are arguments of each script.
local function leave_stub(id, created_ms, fingerprint, now)
  local until_ms = created_ms + (fingerprint and keyed_ms or unkeyed_ms)
  if until_ms <= now then return end
  local left = string.format('%.0f', until_ms - now)
  redis.call('SET', STUB .. id, string.format('%.0f', until_ms) .. ' ' .. (fingerprint or ''), 'PX', left)
end

-- Returns the bytes that it counted.
local function remove_task(id, now)
  local key = TASK .. id
  local v = redis.call('HMGET', key, 'state', 'lane', 'created_ms', 'fingerprint')
  local task = { id = id, key = key, state = v[1], lane = lane_of(v[2]) }
  local bytes = unconclude(task)
  redis.call('HINCRBY', COUNTS, task.lane.tenant .. ':' .. task.lane.queue .. ':' .. task.state, -1)
  leave_stub(id, tonumber(v[3]), v[4], now)
  redis.call('UNLINK', key, BODY .. id, ATTEMPTS .. id, LINES .. id, CHECKPOINT .. id)
  return bytes
end
