#!lua flags=allow-oom
--- announce: a worker says what it serves; its routes are live until then. Streams that were
--- parked for want of a worker come back. With a time of 0 it takes its leave.
--
-- KEYS  clock    hash   of the shard
-- ARGV  now_ms   int    0 = ask the server
--       worker   str
--       ttl_ms   int    0 = leave
-- ROWS  serves   str    'route:<route>' or 'queue:<queue>', 'queue:*' for any
-- REPLY now_ms, streams that came back
-- COST  O(rows + parked streams)
-- @include lib/clock
-- @include lib/keys
-- @include lib/due
-- @include lib/ready
-- @include lib/park
local GARBAGE_MS = 3600000   -- how long what a dead worker left is kept, at most
local now, seen = read_clock(now_ms)
local me = shard .. ':worker:' .. worker
local serves, routes = {}, {}
for at = 1, rows do
  local what = row(at)
  local kind, name = string.match(what, '^(%a+):(.+)$')
  if kind ~= 'route' and kind ~= 'queue' then return redis.error_reply('BADARG row ' .. at .. ': serves') end
  serves[at] = what
  if kind == 'route' then routes[name] = true end
end

keep_clock(now, seen)
if ttl_ms == 0 then
  redis.call('DEL', me, me .. ':serves')
  return { now, 0 }
end
redis.call('HSET', me, 'until_ms', now + ttl_ms)
redis.call('PEXPIRE', me, GARBAGE_MS)
redis.call('DEL', me .. ':serves')
for first = 1, #serves, 1000 do
  redis.call('SADD', me .. ':serves', unpack(serves, first, math.min(first + 999, #serves)))
end
redis.call('PEXPIRE', me .. ':serves', GARBAGE_MS)
for route in pairs(routes) do redis.call('ZADD', ROUTES, 'GT', now + ttl_ms, route) end
redis.call('ZREMRANGEBYSCORE', ROUTES, '-inf', now - GARBAGE_MS)

local back = 0
for route in pairs(routes) do
  local waiting = redis.call('SCARD', BLOCKED .. 'route:' .. route)
  if waiting > 0 then
    back = back + waiting
    while unblock('route:' .. route) do end
  end
end
if back > 0 then redis.call('SPUBLISH', WAKE, 'due 0') end
return { now, back }
