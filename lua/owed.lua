#!lua flags=no-writes
--- owed: the schedules whose next nominal time has come, with what planning needs.
--
-- KEYS  clock   hash   of the shard
-- ARGV  now_ms  int    0 = ask the server
--       limit   int
-- REPLY now_ms, then a row each: ref, status, version, generation, kind, rule, policy, next_ms, last_ms, jitter_ms
-- COST  O(limit)
-- @include lib/clock
local shard = string.sub(clock, 1, -7)
local now = read_clock(now_ms)
local reply = { now }
for _, ref in ipairs(redis.call('ZRANGE', shard .. ':schedules', '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)) do
  local v = redis.call('HMGET', shard .. ':schedule:' .. ref, 'status', 'version', 'generation', 'kind', 'rule', 'policy',
    'next_ms', 'last_ms', 'jitter_ms')
  table.insert(v, 1, ref)
  reply[#reply + 1] = v
end
return reply
