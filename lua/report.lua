#!lua flags=allow-oom
--- report: what a shard has of a limit; one that it has not heard of before begins with what is in use.
--
-- KEYS  clock   hash   of the shard
-- ARGV  limit   str
-- REPLY permits, epoch, in use
-- COST  O(1)
-- @include lib/keys
-- @include lib/limits
if redis.call('HEXISTS', ALLOT, limit) == 0 then keep_allotment(limit, used(limit), 0, false, 0) end
local permits, epoch = allotment(limit)
return { permits, epoch, used(limit) }
