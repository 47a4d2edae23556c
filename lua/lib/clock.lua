-- clock: one notion of "now" that never goes back, and notices when the server was away.
-- `seen_ms` is the highest time any script of this shard saw (written at most once a second, and often
-- enough that with a short lease the pause is not taken for an outage). When more than a third of a
-- lease passed since, no heartbeat can have arrived: nothing is reaped for one full lease more
-- (`hold_ms`), so that an outage costs no live run its attempt.
local function read_clock(now_ms)
  if now_ms == 0 then
    local t = redis.call('TIME')
    now_ms = t[1] * 1000 + math.floor(t[2] / 1000)
  end
  local c = redis.call('HMGET', clock, 'seen_ms', 'lease_ms', 'hold_ms')
  local seen = { ms = tonumber(c[1]) or 0, lease_ms = tonumber(c[2]) or 30000, hold_ms = tonumber(c[3]) or 0 }
  if now_ms < seen.ms then now_ms = seen.ms end
  return now_ms, seen
end

-- The first write of every script that writes.
local function keep_clock(now, seen)
  if now - seen.ms < math.min(1000, seen.lease_ms / 20) then return end
  redis.call('HSET', clock, 'seen_ms', now)
  if seen.ms > 0 and now - seen.ms > seen.lease_ms / 3 then
    seen.hold_ms = now + seen.lease_ms
    redis.call('HSET', clock, 'hold_ms', seen.hold_ms)
  end
end
