-- dispatch: what is due goes to one stream. No windows, no fairness, no look at the record.
local ids = redis.call('ZRANGE', KEYS[1], '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, ARGV[2])
for _, id in ipairs(ids) do
  redis.call('HSET', 'task:' .. id, 'state', 'QUEUED')
  redis.call('XADD', 'ready', '*', 'id', id)
end
if #ids > 0 then redis.call('ZREM', KEYS[1], unpack(ids)) end
return #ids
