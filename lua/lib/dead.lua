-- dead: the groups of a tenant's dead letters. `groups` counts them by fingerprint, queue, route and
-- reason; `group:<tenant>:<fingerprint>` holds those of one fingerprint by the time of their verdict.
local GROUPS, GROUP = shard .. ':groups:', shard .. ':group:'

local function cell_of(lane, fingerprint, reason)
  return fingerprint .. ':' .. lane.queue .. ':' .. lane.route .. ':' .. reason
end

local function bury(task, now)
  local v = redis.call('HMGET', task.key, 'failure', 'reason')
  if not v[1] then return end
  redis.call('HINCRBY', GROUPS .. task.lane.tenant, cell_of(task.lane, v[1], v[2]), 1)
  redis.call('ZADD', GROUP .. task.lane.tenant .. ':' .. v[1], now, task.id)
end

local function unbury(task)
  local v = redis.call('HMGET', task.key, 'failure', 'reason')
  if not v[1] then return end
  local groups, cell = GROUPS .. task.lane.tenant, cell_of(task.lane, v[1], v[2])
  if redis.call('HINCRBY', groups, cell, -1) <= 0 then redis.call('HDEL', groups, cell) end
  redis.call('ZREM', GROUP .. task.lane.tenant .. ':' .. v[1], task.id)
end
