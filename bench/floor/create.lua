-- create: a record and a due entry each. No look before, no lanes, no counters, no events.
local due, now = KEYS[1], ARGV[1]
for at = 2, #ARGV, 3 do
  local id, due_ms, payload = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  redis.call('HSET', 'task:' .. id, 'state', 'PENDING', 'due_ms', due_ms, 'created_ms', now, 'payload', payload)
  redis.call('ZADD', due, due_ms, id)
end
