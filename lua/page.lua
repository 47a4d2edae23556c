#!lua flags=no-writes
--- page: the next entries of several time indexes, after (or before) a place, exactly: neither
--- removed nor added entries shift it, nor a million equal scores.
--
-- KEYS  clock     hash   of the shard
-- ARGV  newest    int    1 = downwards in time
--       score     str    of the last entry seen; empty = from the start
--       id        str    likewise
--       low       str    least score wanted, or -inf
--       high      str    greatest score wanted, or +inf
--       limit     int    of each index
-- ROWS  index     str    key without the shard's prefix
-- REPLY per row: {id, score, id, score, …}
-- COST  O(rows · (limit + log entries))
if limit < 1 then return redis.error_reply('BADARG limit') end
local shard = string.sub(clock, 1, -7)

-- The rank of the first entry that sorts after (score, id).
local function rank_after(key)
  local from = redis.call('ZCOUNT', key, '-inf', '(' .. score)
  local to = redis.call('ZCOUNT', key, '-inf', score)
  while from < to do
    local middle = math.floor((from + to) / 2)
    if redis.call('ZRANGE', key, middle, middle)[1] <= id then from = middle + 1 else to = middle end
  end
  return from
end

local function upwards(key)
  local first = redis.call('ZCOUNT', key, '-inf', low == '-inf' and '(-inf' or '(' .. low)
  if score ~= '' then first = math.max(first, rank_after(key)) end
  local last = redis.call('ZCOUNT', key, '-inf', high) - 1
  if last < first then return {} end
  return redis.call('ZRANGE', key, first, math.min(last, first + limit - 1), 'WITHSCORES')
end

local function downwards(key)
  local last = redis.call('ZCOUNT', key, '-inf', high) - 1
  if score ~= '' then
    local before = rank_after(key) - 1
    -- The entry itself, where it is still there, was seen.
    if before >= 0 and redis.call('ZRANGE', key, before, before)[1] == id then before = before - 1 end
    last = math.min(last, before)
  end
  local first = redis.call('ZCOUNT', key, '-inf', low == '-inf' and '(-inf' or '(' .. low)
  if last < first then return {} end
  local found = redis.call('ZRANGE', key, math.max(first, last - limit + 1), last, 'WITHSCORES')
  local reversed = {}
  for at = #found - 1, 1, -2 do
    reversed[#reversed + 1] = found[at]
    reversed[#reversed + 1] = found[at + 1]
  end
  return reversed
end

local reply = {}
for at = 1, rows do
  local key = shard .. ':' .. row(at)
  reply[at] = newest == 1 and downwards(key) or upwards(key)
end
return reply
