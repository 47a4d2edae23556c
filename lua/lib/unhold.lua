-- unhold: a task that is held for its concurrency key leaves that place.
local function unhold(task)
  redis.call('ZREM', HELD .. string.match(task.concurrency, '^%x+'), task.id)
  redis.call('ZREM', WITHHELD .. task.lane.tenant, task.id)
  redis.call('HDEL', task.key, 'held')
end
