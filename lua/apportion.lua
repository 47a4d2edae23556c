#!lua flags=allow-oom
--- apportion: a shard hears what it is allotted of a limit; who waited for it may go on.
--
-- KEYS  clock      hash   of the shard
-- ARGV  limit      str
--       permits    int
--       epoch      int    of this allotment; an older one than it has changes nothing
--       contended  int    1 = others wait too: what is not used is given back
--       short_ms   int    the home is not asked again before; 0 = any time
-- REPLY permits, epoch: as they are now
-- COST  O(1)
-- @include lib/keys
-- @include lib/limits
if permits < 0 or epoch < 0 then return redis.error_reply('BADARG permits') end
local had, at_epoch = allotment(limit)
if epoch < at_epoch then return { had, at_epoch } end
if epoch == at_epoch then permits = math.min(had, permits) end   -- heard before: it may have given some back
local inuse = used(limit)
keep_allotment(limit, permits, epoch, contended == 1, short_ms)
redis.call('ZREM', PARKED, '!' .. limit)
local waits = redis.call('EXISTS', BLOCKED .. limit, HELD .. string.sub(limit, 3)) > 0
if permits > inuse and waits then
  redis.call('ZADD', FREED, 0, '+' .. limit)
  redis.call('SPUBLISH', WAKE, 'due 0')
elseif contended == 1 and permits > inuse then
  permits = give_back(limit, permits)
end
return { permits, epoch }
