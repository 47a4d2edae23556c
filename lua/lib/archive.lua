-- archive: the log of attempts. The last attempt lives in the hash, where a happy one costs
-- nothing extra; the one before it moves to a list when the next starts. Bounded.
local ATTEMPTS_MAX = 100
local ATTEMPT_FIELDS = { 'attempt', 'fence', 'worker', 'started_ms', 'ended_ms', 'outcome', 'error' }

local function archive_attempt(key, id)
  local v = redis.call('HMGET', key, unpack(ATTEMPT_FIELDS))
  if not v[6] then return end
  local entry = {}
  for n, field in ipairs(ATTEMPT_FIELDS) do
    if v[n] then entry[field] = v[n] end
  end
  redis.call('RPUSH', shard .. ':attempts:' .. id, cjson.encode(entry))
  redis.call('LTRIM', shard .. ':attempts:' .. id, -ATTEMPTS_MAX, -1)
  redis.call('HDEL', key, 'ended_ms', 'outcome', 'progress', 'error')
end
