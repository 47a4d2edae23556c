#!lua flags=allow-oom
--- enlist: one process of a kind says that it lives; whose word is too old is forgotten.
--
-- KEYS  members  zset   process → ms until which it lives
-- ARGV  now_ms   int    0 = ask the server
--       member   str
--       ttl_ms   int    0 = it leaves
-- REPLY the names of all that live
-- COST  O(log members + members)
local now = now_ms
if now == 0 then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
redis.call('ZREMRANGEBYSCORE', members, '-inf', now)
if ttl_ms == 0 then
  redis.call('ZREM', members, member)
else
  redis.call('ZADD', members, now + ttl_ms, member)
end
return redis.call('ZRANGE', members, 0, -1)
