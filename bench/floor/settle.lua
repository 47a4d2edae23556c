-- settle: mark each record as done, forget its watch and its entry, list it with the finished.
local now = ARGV[1]
for at = 2, #ARGV, 2 do
  local id, entry = ARGV[at], ARGV[at + 1]
  redis.call('HSET', 'task:' .. id, 'state', 'SUCCESS', 'finished_ms', now)
  redis.call('ZREM', 'watch', id)
  redis.call('ZADD', 'done', now, id)
  redis.call('XACK', KEYS[1], 'workers', entry)
  redis.call('XDEL', KEYS[1], entry)
end
