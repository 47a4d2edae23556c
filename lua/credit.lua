#!lua flags=allow-oom
--- credit: a shard gets tokens of a rate; who waited for them may go on now, or looks again then.
--
-- KEYS  clock     hash   of the shard
-- ARGV  now_ms    int    0 = ask the server
--       limit     str
--       tokens    int    0 = there were none
--       until_ms  int    they are good until then, by the clock of the home; names this answer
--       next_ms   int    when there will be more
-- REPLY tokens it has now
-- COST  O(waiting lanes), at most 100
--
-- By the clock of this shard they are good for a second from now. An answer that was heard before, or one
-- before the last, changes nothing; nor does one that was on its way for longer than clocks may differ.
-- @include lib/clock
-- @include lib/keys
-- @include lib/limits
local SLICE_MS, CLOCKS_MS = 1000, 5000
local now, seen = read_clock(now_ms)
if tokens < 0 then return redis.error_reply('BADARG tokens') end
local mark = tonumber(string.match(redis.call('HGET', TOKENS, limit) or '', '(%d+)$')) or 0
if tokens > 0 and (until_ms <= mark or until_ms + CLOCKS_MS <= now) then return tokens_left(limit, now) end
local left = tokens_left(limit, now) + tokens
keep_clock(now, seen)
if tokens > 0 then
  redis.call('HSET', TOKENS, limit, string.format('%.0f %.0f %.0f', left, now + SLICE_MS, until_ms))
  redis.call('ZADD', FREED, 0, limit)
  redis.call('SPUBLISH', WAKE, 'due 0')
elseif left == 0 then
  -- The earliest look there is; the others follow when it has asked.
  local name = redis.call('SRANDMEMBER', BLOCKED .. limit)
  if name then redis.call('ZADD', PARKED, 'XX', next_ms, name) end
end
return left
