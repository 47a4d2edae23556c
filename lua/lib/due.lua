-- due: the only code that adds to and takes from a lane, the due index: a sorted set per lane, and `lanes`, which holds
-- each lane's earliest due time (or an earlier one: a removed head is noticed when its time comes).
local adding = {}

local function due_add(lane, id, due_ms)
  local batch = lane.adding
  if not batch then
    batch = { lane = lane, min = due_ms }
    lane.adding = batch
    adding[#adding + 1] = batch
  end
  local n = #batch
  batch[n + 1], batch[n + 2] = due_ms, id
  if due_ms < batch.min then batch.min = due_ms end
end

-- A due time as callers write it: ms since the epoch, or '+ms' after now. Nil for anything else:
-- an infinite one would be stored, and never come.
local function due_at(text, now)
  local ms = tonumber(text)
  if not ms or ms % 1 ~= 0 or math.abs(ms) > 2 ^ 53 then return nil end
  return string.sub(text, 1, 1) == '+' and now + ms or ms
end

local function due_remove(lane, ids) return redis.call('ZREM', lane.due, unpack(ids)) end

-- Writes what due_add collected; wakes the schedulers when an earlier due time arrived.
local function due_flush()
  local earliest
  local lanes = {}
  for n, batch in ipairs(adding) do
    local lane = batch.lane
    redis.call('ZADD', lane.due, unpack(batch))
    redis.call('SADD', shard .. ':index:' .. lane.tenant, lane.text)
    lanes[2 * n - 1], lanes[2 * n] = batch.min, lane.text
    if not earliest or batch.min < earliest then earliest = batch.min end
  end
  if not earliest then return end
  for _, batch in ipairs(adding) do batch.lane.adding = nil end
  adding = {}
  local head = redis.call('ZRANGE', LANES, 0, 0, 'WITHSCORES')[2]
  redis.call('ZADD', LANES, 'LT', unpack(lanes))
  if not head or earliest < tonumber(head) then
    redis.call('SPUBLISH', WAKE, 'due ' .. string.format('%.0f', earliest))
  end
end

-- Up to `limit` ids of the lane that are due by `until_ms`, the earliest first.
local function due_heads(lane, until_ms, limit)
  return redis.call('ZRANGE', lane.due, '-inf', until_ms, 'BYSCORE', 'LIMIT', 0, limit)
end

local function due_head_ms(lane) return tonumber(redis.call('ZRANGE', lane.due, 0, 0, 'WITHSCORES')[2]) end
