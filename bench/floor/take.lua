-- take: read the group, mark each record as running, watch it, return what runs it.
local now, most, lease_ms = ARGV[1], ARGV[2], ARGV[3]
local read = redis.call('XREADGROUP', 'GROUP', 'workers', 'w', 'COUNT', most, 'STREAMS', KEYS[1], '>')
local grants = {}
for _, entry in ipairs(read and read[1][2] or {}) do
  local id = entry[2][2]
  local payload = redis.call('HGET', 'task:' .. id, 'payload')
  redis.call('HSET', 'task:' .. id, 'state', 'RUNNING', 'attempt', 1, 'started_ms', now)
  redis.call('ZADD', 'watch', now + lease_ms, id)
  grants[#grants + 1] = { id, entry[1], payload }
end
return grants
