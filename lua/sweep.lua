#!lua flags=allow-oom
--- sweep: entries of one ready stream without a task behind them go; running tasks that the watch
--- index has lost are watched again; an empty stream goes. The other half of idea 7 of the architecture.
--
-- KEYS  clock    hash   of the shard
-- ARGV  now_ms   int    0 = ask the server
--       stream   str    queue:priority:route
--       from     str    entry id to begin at; '-' = the first
--       limit    int
-- REPLY next entry id ('' = done), entries removed, tasks watched again, consumers removed
-- COST  O(limit)
-- @include lib/clock
-- @include lib/keys
-- @include lib/acks
-- @include lib/waiting
-- @include lib/ready
if limit < 1 then return redis.error_reply('BADARG limit') end
local now, seen = read_clock(now_ms)
local key = READY .. stream
local entries = redis.pcall('XRANGE', key, from, '+', 'COUNT', limit)
if entries.err then return { '', 0, 0, 0 } end
keep_clock(now, seen)
if #entries == 0 and from == '-' then
  redis.call('DEL', key)
  redis.call('SREM', OPENED, stream)
  redis.call('ZREM', UNREAD, stream)
  redis.call('HDEL', shard .. ':window', stream)
  return { '', 0, 0, 0 }
end
-- Nothing waits for it: what its window had come to says nothing of the next time.
if from == '-' and redis.call('SISMEMBER', FULL, stream) == 0 then redis.call('HDEL', shard .. ':window', stream) end

local removed, watched, undelivered = 0, 0, false
for _, entry in ipairs(entries) do
  local id = entry[2] and entry[2][2] or ''
  local task = read_waiting(id)
  local held = task and (task.state == 'QUEUED' or task.state == 'RUNNING') and task.entry == entry[1]
  if not held then
    ack(stream, entry[1])
    removed = removed + 1
  elseif redis.call('ZADD', WATCH, 'NX', now + (task.state == 'RUNNING' and seen.lease_ms or TAKE_BY_MS), id) == 1 then
    watched = watched + 1
  end
  if held and task.state == 'QUEUED' then undelivered = true end
end
ack_flush()
if removed > 0 then redis.call('HINCRBY', STATS, 'stray:entry', removed) end
if undelivered and redis.call('ZADD', UNREAD, 'NX', 0, stream) == 1 then redis.call('SPUBLISH', WAKE, 'work') end

-- Consumers of workers that are gone, never one that still has pending entries (they would be lost).
local gone = 0
local consumers = redis.pcall('XINFO', 'CONSUMERS', key, 'workers')
for _, consumer in ipairs(consumers.err and {} or consumers) do
  local name, pending = consumer[2], consumer[4]
  if pending == 0 and redis.call('EXISTS', shard .. ':worker:' .. name) == 0 then
    redis.call('XGROUP', 'DELCONSUMER', key, 'workers', name)
    gone = gone + 1
  end
end
local last = entries[#entries]
return { #entries == limit and '(' .. last[1] or '', removed, watched, gone }
