-- verdict: what follows from a final state, in the same script that records it: the index that
-- retention and lists use, the bytes it will free, and the word to those who wait for the result.
local concluded, finished = {}, {}
local RECORD_BYTES = 400   -- of a record beside its payload, result and error
local OCCURRENCE = 114     -- 'r', with which the id of every occurrence begins

local function stored_bytes(key)
  return RECORD_BYTES + redis.call('HSTRLEN', key, 'payload') + redis.call('HSTRLEN', key, 'result')
    + redis.call('HSTRLEN', key, 'error') + (tonumber(redis.call('HGET', key, 'body')) or 0)
end

local function conclude(task, now)
  local index = shard .. (task.state == 'FAILED' and ':dead:' or ':done:') .. task.lane.tenant
  local batch = concluded[index]
  if not batch then
    batch = { tenant = task.lane.tenant, bytes = 0 }
    concluded[index] = batch
  end
  batch[#batch + 1] = now
  batch[#batch + 1] = task.id
  batch.bytes = batch.bytes + stored_bytes(task.key)
  finished[#finished + 1] = task.id .. ':' .. task.state
  if string.byte(task.id) == OCCURRENCE then follow(task, now) end
end

-- A record leaves the finished ones again: redriven, or taken by retention.
local function unconclude(task, state)
  redis.call('ZREM', shard .. (state == 'FAILED' and ':dead:' or ':done:') .. task.lane.tenant, task.id)
  redis.call('HINCRBY', COUNTS, 'bytes:' .. task.lane.tenant, -stored_bytes(task.key))
end

local function verdict_flush()
  if #finished == 0 then return end
  schedule_flush()
  for index, batch in pairs(concluded) do
    redis.call('ZADD', index, unpack(batch))
    redis.call('SADD', shard .. ':tenants', batch.tenant)
    redis.call('HINCRBY', COUNTS, 'bytes:' .. batch.tenant, batch.bytes)
  end
  redis.call('SPUBLISH', FINISHED, table.concat(finished, ' '))
end
