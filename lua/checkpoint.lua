#!lua flags=allow-oom
--- checkpoint: keep a value that the next attempt of a task receives.
--
-- KEYS  clock   hash   of the shard
-- ARGV  now_ms  int    0 = ask the server
--       id      str
--       fence   str    of the attempt
--       value   bytes
-- REPLY 'ok' or 'stale'
-- COST  O(1)
-- @include lib/clock
-- @include lib/keys
local now, seen = read_clock(now_ms)
local v = redis.call('HMGET', TASK .. id, 'state', 'fence')
if v[1] ~= 'RUNNING' or v[2] ~= fence then return 'stale' end
local grown = #value - redis.call('STRLEN', CHECKPOINT .. id)
keep_clock(now, seen)
redis.call('SET', CHECKPOINT .. id, value)
if grown ~= 0 then redis.call('HINCRBY', TASK .. id, 'extra', grown) end
return 'ok'
