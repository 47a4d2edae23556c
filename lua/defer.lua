#!lua flags=allow-oom
--- defer: the worker lets go of a run that goes on elsewhere; its verdict comes by a callback. It stays
--- RUNNING under its fence, and has a lease of its own until it is heard of.
--
-- KEYS  clock     hash   of the shard
-- ARGV  now_ms    int    0 = ask the server
-- ROWS  id        str
--       fence     str    of the attempt
--       lease_ms  int    from now; what its lease has left, where that is more
-- REPLY a word a row: 'RUNNING', another state (the callback was faster), or 'stale'
-- COST  O(rows · log running)
-- @include lib/clock
-- @include lib/keys
local now, seen = read_clock(now_ms)
local reply, deferring = {}, {}
for at = 1, rows do
  local id, fence, lease_ms = row(at)
  local v = redis.call('HMGET', TASK .. id, 'state', 'fence', 'version', 'deferred')
  if not v[1] or v[2] ~= fence then
    reply[at] = 'stale'
  else
    reply[at] = v[1]
    -- Said again, it leaves the lease alone: a heartbeat may have pushed it further since.
    if v[1] == 'RUNNING' and not v[4] then
      deferring[id] = { version = (tonumber(v[3]) or 1) + 1, until_ms = now + lease_ms }
    end
  end
end

keep_clock(now, seen)
for id, one in pairs(deferring) do
  redis.call('HSET', TASK .. id, 'deferred', '1', 'version', one.version)
  redis.call('ZADD', WATCH, 'GT', one.until_ms, id)   -- a callback may have been here before
end
return reply
