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
-- What began while no limit was in force: a new epoch, or the home would not believe in more.
local permits, epoch, contended, short_ms = allotment(limit)
if used(limit) > permits then
  permits, epoch = used(limit), epoch + 1
  keep_allotment(limit, permits, epoch, contended, short_ms)
end
return { permits, epoch, used(limit) }
