#!lua flags=no-writes
--- overdue: what the watch index says must be looked at.
--
-- KEYS  clock   hash   of the shard
-- ARGV  now_ms  int    0 = ask the server
--       limit   int
-- REPLY now_ms, hold_ms (nothing is reaped before), then a row each: id, state, fence, lane,
--       options, attempt, uncounted, lost, worker, deferred
-- COST  O(limit)
-- @include lib/clock
-- @include lib/keys
if limit < 1 then return redis.error_reply('BADARG limit') end
local now, seen = read_clock(now_ms)
local reply = { now, seen.hold_ms }
for _, id in ipairs(redis.call('ZRANGE', WATCH, '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)) do
  local v = redis.call('HMGET', TASK .. id, 'state', 'fence', 'lane', 'options', 'attempt', 'uncounted', 'lost', 'worker', 'deferred')
  table.insert(v, 1, id)
  reply[#reply + 1] = v
end
return reply
