-- park: streams that may not be served stand aside with a reason and a time to look again, so that
-- they are never scanned and skipped. Whatever ends the reason puts them back (`unpark`).
local RECHECK_MS, RECHECK_MAX = 15000, 100

local function park(stream, reason, now)
  redis.call('ZADD', PARKED, now + RECHECK_MS, stream)
  redis.call('HSET', PARKED .. ':why', stream, reason)
  redis.call('ZREM', BACKLOG, stream)
end

local function unpark(stream)
  redis.call('ZREM', PARKED, stream)
  redis.call('HDEL', PARKED .. ':why', stream)
  enter_backlog(stream)
end

local function unpark_due(now)
  for _, stream in ipairs(redis.call('ZRANGE', PARKED, '-inf', now, 'BYSCORE', 'LIMIT', 0, RECHECK_MAX)) do
    local route = string.match(stream, '([^:]+)$')
    if is_live(route, now) then unpark(stream) else redis.call('ZADD', PARKED, now + RECHECK_MS, stream) end
  end
end
