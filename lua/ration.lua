#!lua flags=allow-oom
--- ration: at the home of a rate: hand out tokens. A bucket holds those of one second, at least one.
--
-- KEYS  clock      hash   of the home shard
-- ARGV  now_ms     int    0 = ask the server
--       limit      str    'rt/acme', 'rq/mail', 'c/acme' (creates)
--       per_kilo   int    tokens in a thousand seconds
--       want       int
-- REPLY tokens, ms until which they are good, ms at which the next one is there
-- COST  O(1)
--
-- No two answers are good until the same ms: it tells a shard which one it has heard already.
-- @include lib/clock
-- @include lib/keys
local SLICE_MS = 1000
if per_kilo < 1 or want < 0 then return redis.error_reply('BADARG per_kilo') end
local now, seen = read_clock(now_ms)
local rate = per_kilo / 1000000   -- tokens a ms
local most = math.max(rate * SLICE_MS, 1)
local home = shard .. ':limit:' .. limit
local v = redis.call('HMGET', home, 'tokens', 'at_ms', 'until_ms')
local tokens = math.min(most, (tonumber(v[1]) or most) + math.max(now - (tonumber(v[2]) or now), 0) * rate)
local given = math.min(math.floor(tokens), want)
tokens = tokens - given
keep_clock(now, seen)
local until_ms = math.max(now + SLICE_MS, (tonumber(v[3]) or 0) + 1)
redis.call('HSET', home, 'tokens', string.format('%.9f', tokens), 'at_ms', now, 'until_ms', until_ms)
redis.call('PEXPIRE', home, math.ceil(most / rate) + 60000)
local next_ms = tokens >= 1 and now or now + math.ceil((1 - tokens) / rate)
return { given, until_ms, next_ms }
