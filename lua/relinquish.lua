#!lua flags=allow-oom
--- relinquish: permits of concurrency keys that nobody used for a while go back to their homes, and the shard
--- forgets the keys: there may be one an order.
--
-- KEYS  clock    hash   of the shard
-- ARGV  now_ms   int    0 = ask the server
--       cursor   int    0 = from the beginning
--       idle_ms  int    since it was told of its part
-- REPLY cursor (0 = that was all), then {limit, epoch} each: the home hears that this shard has none
-- COST  O(keys looked at), about 100
--
-- For a forgotten key the shard knows the highest epoch it ever forgot (field `k`): an older word of a home is not
-- believed, as if it remembered.
-- @include lib/clock
-- @include lib/keys
-- @include lib/limits
local LOOK = 100
local now = read_clock(now_ms)
if cursor < 0 or idle_ms < 0 then return redis.error_reply('BADARG cursor') end
local reply = redis.call('HSCAN', ALLOT, string.format('%.0f', cursor), 'MATCH', 'k/*', 'COUNT', LOOK)
local gone, floor = { tonumber(reply[1]) }, tonumber(redis.call('HGET', ALLOT, 'k')) or 0
for at = 1, #reply[2], 2 do
  local limit = reply[2][at]
  local _, epoch = allotment(limit)
  local waits = redis.call('EXISTS', HELD .. string.sub(limit, 3), BLOCKED .. limit) > 0
  if not waits and used(limit) == 0 and epoch + idle_ms <= now then
    floor = math.max(floor, epoch)
    gone[#gone + 1] = { limit, string.format('%.0f', epoch) }
  end
end
if #gone == 1 then return gone end
redis.call('HSET', ALLOT, 'k', string.format('%.0f', floor))
for at = 2, #gone do
  redis.call('HDEL', ALLOT, gone[at][1])
  redis.call('HDEL', COUNTS, gone[at][1])
  redis.call('ZREM', PARKED, gone[at][1], '!' .. gone[at][1])
end
return gone
