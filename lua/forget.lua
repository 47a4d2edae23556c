#!lua flags=allow-oom
--- forget: what a shard remembers of a tenant that has no tasks in it any more.
--
-- KEYS  clock   hash   of the shard
-- ARGV  tenant  str
-- ROWS  queue   str    where the tenant had tasks
-- REPLY 'forgotten'; 'busy': it has tasks, and nothing was changed; 'more' = ask again
-- COST  O(rows + lanes that it had), at most 500 lanes a call
--
-- Its rules stay as they are: their versions must not begin anew.
-- @include lib/keys
local LANES_MAX = 500
local STATES = { 'PENDING', 'QUEUED', 'RUNNING', 'SUCCESS', 'FAILED', 'CANCELLED' }
local counters = { 'p/' .. tenant, 't/' .. tenant }
for at = 1, rows do
  local queue = row(at)
  for _, state in ipairs(STATES) do counters[#counters + 1] = tenant .. ':' .. queue .. ':' .. state end
end
for _, field in ipairs(counters) do
  if (tonumber(redis.call('HGET', COUNTS, field)) or 0) ~= 0 then return 'busy' end
end
for _, index in ipairs({ ':done:', ':dead:', ':withheld:', ':groups:' }) do
  if redis.call('EXISTS', shard .. index .. tenant) == 1 then return 'busy' end
end
local lanes = redis.call('SRANDMEMBER', shard .. ':index:' .. tenant, LANES_MAX)
for _, lane in ipairs(lanes) do
  if redis.call('EXISTS', DUE .. lane) == 1 then return 'busy' end
end

-- Lanes stand where schedulers would notice, in time, that they are empty.
for _, name in ipairs(lanes) do
  local why = redis.call('HGET', PARKED .. ':why', name)
  local on = why and string.match(why, '^%S+ (.*)$')
  if on then redis.call('SREM', BLOCKED .. on, name) end
  redis.call('HDEL', PARKED .. ':why', name)
  redis.call('ZREM', PARKED, name)
  redis.call('ZREM', LANES, name)
  redis.call('ZREM', TURNS .. lane_of(name).stream, tenant)
  redis.call('SREM', shard .. ':index:' .. tenant, name)
end
if redis.call('EXISTS', shard .. ':index:' .. tenant) == 1 then return 'more' end
redis.call('HDEL', COUNTS, 'bytes:' .. tenant, unpack(counters))
redis.call('SREM', shard .. ':tenants', tenant)
redis.call('ZREM', FREED, 'tenant:' .. tenant, 't/' .. tenant, 'p/' .. tenant)
for _, limit in ipairs({ 't/' .. tenant, 'p/' .. tenant, 'rt/' .. tenant, 'c/' .. tenant }) do
  redis.call('HDEL', ALLOT, limit)
  redis.call('HDEL', TOKENS, limit)
  redis.call('ZREM', PARKED, '!' .. limit)
  redis.call('DEL', shard .. ':limit:' .. limit)
end
return 'forgotten'
