#!lua flags=allow-oom
--- prune: finished tasks leave when they are too old, too many or too large; oldest success first.
--- What leaves before its idempotency window ends leaves a stub.
--
-- KEYS  clock        hash   of the shard
-- ARGV  now_ms       int    0 = ask the server
--       tenant       str
--       done_ms      int    age at which SUCCESS and CANCELLED leave
--       dead_ms      int    age at which FAILED leaves
--       count_max    int    of done tasks of this tenant in this shard
--       bytes_max    int    of finished records of this tenant in this shard
--       keyed_ms     int    how long an idempotency key is remembered after the creation
--       unkeyed_ms   int    likewise an id without a key
--       limit        int
-- REPLY removed, more (1 = call again)
-- COST  O(limit · log finished)
-- @include lib/clock
-- @include lib/keys
-- @include lib/move
-- @include lib/due
-- @include lib/dead
-- @include lib/notify
-- @include lib/occurrence
-- @include lib/verdict
-- @include lib/remove
local now, seen = read_clock(now_ms)
keep_clock(now, seen)
local done, dead = shard .. ':done:' .. tenant, shard .. ':dead:' .. tenant
local bytes = tonumber(redis.call('HGET', COUNTS, 'bytes:' .. tenant)) or 0
local removed = 0

local function remove(index, id)
  local state = redis.call('HGET', TASK .. id, 'state')
  removed = removed + 1
  local kept = index == dead and state == 'FAILED' or index == done and (state == 'SUCCESS' or state == 'CANCELLED')
  if kept then
    bytes = bytes - remove_task(id, now)
  else
    redis.call('ZREM', index, id)
    redis.call('HINCRBY', STATS, 'stray:finished', 1)
  end
end

local function prune_old(index, age_ms)
  for _, id in ipairs(redis.call('ZRANGE', index, '-inf', now - age_ms, 'BYSCORE', 'LIMIT', 0, limit - removed)) do
    remove(index, id)
  end
end

local function prune_excess(index, excess)
  if excess <= 0 or removed >= limit then return end
  for _, id in ipairs(redis.call('ZRANGE', index, 0, math.min(excess, limit - removed) - 1)) do remove(index, id) end
end

if limit > 0 then prune_old(done, done_ms) end
if removed < limit then prune_old(dead, dead_ms) end
prune_excess(done, redis.call('ZCARD', done) - count_max)
for _, index in ipairs({ done, dead }) do
  while bytes > bytes_max and removed < limit do
    local oldest = redis.call('ZRANGE', index, 0, 0)[1]
    if not oldest then break end
    remove(index, oldest)
  end
end
if redis.call('EXISTS', done, dead) == 0 then redis.call('SREM', shard .. ':tenants', tenant) end
return { removed, removed >= limit and 1 or 0 }
