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

-- A parked stream whose route lives comes back; one whose tasks are all gone (cancelled, edited) goes,
-- tenant by tenant, or streams of versions that nobody serves any more would pile up.
local function unpark_due(now)
  for _, stream in ipairs(redis.call('ZRANGE', PARKED, '-inf', now, 'BYSCORE', 'LIMIT', 0, RECHECK_MAX)) do
    local tenant = redis.call('ZRANGE', TURNS .. stream, 0, 0)[1]
    local lane = tenant and lane_in(stream, tenant)
    if is_live(string.match(stream, '([^:]+)$'), now) then
      unpark(stream)
    elseif not tenant then
      redis.call('ZREM', PARKED, stream)
      redis.call('HDEL', PARKED .. ':why', stream)
    elseif redis.call('EXISTS', DUE .. lane.text) == 0 then
      redis.call('ZREM', TURNS .. stream, tenant)
      redis.call('SREM', shard .. ':index:' .. tenant, lane.text)
    else
      redis.call('ZADD', PARKED, now + RECHECK_MS, stream)
    end
  end
end
