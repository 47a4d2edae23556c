-- verdict: what follows from a final state, in the same script that records it: the index that
-- retention and lists use, the bytes it will free, the word to those who wait for the result, and
-- the followers: the notification that was asked for, and what a schedule makes next.
local concluded, finished = {}, {}
local SAID = { SUCCESS = ':SUCCESS ', FAILED = ':FAILED ', CANCELLED = ':CANCELLED ' }
local RECORD_BYTES = 400   -- of a record beside its payload, result and error
local OCCURRENCE = 114     -- 'r', with which the id of every occurrence begins

local function stored_bytes(key)
  return RECORD_BYTES + redis.call('HSTRLEN', key, 'payload') + redis.call('HSTRLEN', key, 'result')
    + redis.call('HSTRLEN', key, 'error') + (tonumber(redis.call('HGET', key, 'body')) or 0)
    + (tonumber(redis.call('HGET', key, 'extra')) or 0)
end

local function conclude(task, now)
  local lane, where = task.lane, task.state == 'FAILED' and ':dead:' or ':done:'
  local batch = lane[where]
  if not batch then
    local index = shard .. where .. lane.tenant
    batch = concluded[index] or { tenant = lane.tenant, bytes = 0 }
    concluded[index], lane[where] = batch, batch
  end
  local n = #batch
  batch[n + 1], batch[n + 2] = now, task.id
  batch.bytes = batch.bytes + (task.bytes or stored_bytes(task.key))
  n = #finished
  finished[n + 1], finished[n + 2] = task.id, SAID[task.state]
  if task.state == 'FAILED' then bury(task, now) end
  if task.wants == nil then task.wants = redis.call('HGET', task.key, 'wants') end
  notify_verdict(task, task.wants, now)
  if string.byte(task.id) == OCCURRENCE then follow(task, now) end
end

-- A record leaves the finished ones again: redriven, or removed. Returns the bytes that it counted.
local function unconclude(task)
  local bytes = stored_bytes(task.key)
  if task.state == 'FAILED' then unbury(task) end
  redis.call('ZREM', shard .. (task.state == 'FAILED' and ':dead:' or ':done:') .. task.lane.tenant, task.id)
  redis.call('HINCRBY', COUNTS, 'bytes:' .. task.lane.tenant, -bytes)
  return bytes
end

local function verdict_flush()
  if #finished == 0 then return end
  schedule_flush()
  for index, batch in pairs(concluded) do
    redis.call('ZADD', index, unpack(batch))
    redis.call('SADD', shard .. ':tenants', batch.tenant)
    bump('bytes:' .. batch.tenant, batch.bytes)
  end
  redis.call('SPUBLISH', FINISHED, string.sub(table.concat(finished), 1, -2))
end
