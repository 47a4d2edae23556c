-- park: streams and lanes that may not be served stand aside with a reason and a time to look again,
-- so that they are never scanned and skipped. Whatever ends the reason puts them back (`unpark`):
-- a worker announces the route, a setting changes, a permit or a token is there. `blocked:<what>`
-- holds those that wait for one thing: a limit, or the field of a setting. Concurrency keys with held
-- tasks stand among the parked too, and limits whose home has not answered ('!'), to be looked at again.
local RECHECK_MS = { no_worker = 15000, running = 15000, rate = 2000, paused = 60000 }

local function is_stream(name) return string.match(name, '^[^:]+:[^:]+:[^:]+$') ~= nil end

-- why: 'no_worker', 'paused', 'running' or 'rate'; on: what it waits for.
local function park(name, why, on, now)
  redis.call('ZADD', PARKED, now + RECHECK_MS[why], name)
  redis.call('HSET', PARKED .. ':why', name, on and why .. ' ' .. on or why)
  if on then redis.call('SADD', BLOCKED .. on, name) end
  if is_stream(name) then redis.call('ZREM', BACKLOG, name) end
end

local function leave_park(name)
  redis.call('HDEL', PARKED .. ':why', name)
  return redis.call('ZREM', PARKED, name) == 1
end

-- A lane is noticed again by its due time, a stream goes back to the backlog.
local function unpark(name)
  if not leave_park(name) then return end
  if is_stream(name) then
    enter_backlog(name)
  else
    local lane = lane_of(name)
    local head_ms = due_head_ms(lane)
    if head_ms then
      redis.call('ZADD', LANES, 'LT', head_ms, name)
    else
      redis.call('SREM', shard .. ':index:' .. lane.tenant, name)
    end
  end
end

-- Those that waited for `what` may go on, at most a hundred at a time. True while there are more.
local function unblock(what)
  for _, name in ipairs(redis.call('SPOP', BLOCKED .. what, 100)) do unpark(name) end
  return redis.call('EXISTS', BLOCKED .. what) == 1
end
