-- archive: the log of attempts. The last attempt lives in the hash, where a happy one costs
-- nothing extra; the one before it moves to a list when the next starts. Bounded.
local ATTEMPTS_MAX = 100
local ATTEMPT_FIELDS = { 'attempt', 'fence', 'worker', 'started_ms', 'ended_ms', 'outcome', 'error' }
-- What belongs to one attempt only.
local ENDED_FIELDS = { 'ended_ms', 'outcome', 'progress', 'error', 'postponed', 'deferred' }

local function archive_attempt(key, id)
  local v = redis.call('HMGET', key, 'postponed', unpack(ATTEMPT_FIELDS))
  local postponed = table.remove(v, 1)
  if not v[6] then return end
  redis.call('HDEL', key, unpack(ENDED_FIELDS))
  if postponed then return end   -- it began nothing, and would push out what did
  local entry = {}
  for n, field in ipairs(ATTEMPT_FIELDS) do
    if v[n] then entry[field] = v[n] end
  end
  redis.call('RPUSH', ATTEMPTS .. id, cjson.encode(entry))
  redis.call('LTRIM', ATTEMPTS .. id, -ATTEMPTS_MAX, -1)
end
