-- hold: tasks whose concurrency key has no permit free stand aside by due time, not at the head of their
-- lane. `held:<hash>` orders those of one key, `withheld:<tenant>` lists those of one tenant.
local KEY_RECHECK_MS = 5000

local function key_of(concurrency)
  local hash, capacity = string.match(concurrency, '^(%x+):(%d+)$')
  return 'k/' .. hash, tonumber(capacity), HELD .. hash
end

-- True where the task must wait: for a permit, or for one of its key that is due before it.
local function must_hold(concurrency, due_ms)
  local limit, _, held = key_of(concurrency)
  if allotment(limit) - used(limit) <= 0 then return true end
  local first_ms = tonumber(redis.call('ZRANGE', held, 0, 0, 'WITHSCORES')[2])
  return first_ms ~= nil and first_ms < due_ms
end

-- The key itself is parked: should its turn be lost, it asks again.
local function ask_for_held(limit, now)
  local held = HELD .. string.sub(limit, 3)
  local first = redis.call('ZRANGE', held, 0, 0, 'WITHSCORES')
  if not first[1] then
    redis.call('ZREM', PARKED, limit)
    return false
  end
  redis.call('ZADD', PARKED, now + KEY_RECHECK_MS, limit)
  local _, capacity = key_of(redis.call('HGET', TASK .. first[1], 'concurrency'))
  demand(limit, capacity, math.min(redis.call('ZCARD', held), WANT_MAX), tonumber(first[2]), now)
  return true
end

local function hold(task, concurrency, due_ms, now)
  local limit, _, held = key_of(concurrency)
  local _, _, _, short_ms = allotment(limit)
  redis.call('ZADD', held, due_ms, task.id)
  redis.call('ZADD', WITHHELD .. task.lane.tenant, due_ms, task.id)
  redis.call('HSET', task.key, 'held', '1')
  if short_ms <= now then ask_for_held(limit, now) else redis.call('ZADD', PARKED, 'NX', now + KEY_RECHECK_MS, limit) end
end

-- The earliest go back to their lanes, as many as there are permits. True while more could.
local function let_go(limit)
  local held = HELD .. string.sub(limit, 3)
  local free = math.min(allotment(limit) - used(limit), UNBLOCK_MAX)
  if free <= 0 then return false end
  local popped = redis.call('ZPOPMIN', held, free)
  for at = 1, #popped, 2 do
    local id = popped[at]
    local v = redis.call('HMGET', TASK .. id, 'state', 'lane')
    if v[1] == 'PENDING' then
      local lane = lane_of(v[2])
      redis.call('ZREM', WITHHELD .. lane.tenant, id)
      redis.call('HDEL', TASK .. id, 'held')
      due_add(lane, id, tonumber(popped[at + 1]))
    end
  end
  return redis.call('EXISTS', held) == 1
end
