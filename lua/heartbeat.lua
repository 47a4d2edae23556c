#!lua flags=allow-oom
--- heartbeat: push the leases of live runs forward, and tell which must stop.
--
-- KEYS  clock       hash   of the shard
-- ARGV  now_ms      int    0 = ask the server
-- ROWS  id          str
--       fence       str
--       lease_ms    int    from now
--       timeout_ms  opt    of the attempt: no lease reaches past start + timeout + lease
--       progress    str    JSON {at, message}; empty = unchanged
-- REPLY a word a row: 'ok', 'cancel' (a cancel was requested), 'stale'
-- COST  O(rows · log running)
-- @include lib/clock
-- @include lib/keys
local now, seen = read_clock(now_ms)
local reply, watch, progressed = {}, {}, {}

for at = 1, rows do
  local id, fence, lease_ms, timeout_ms, progress = row(at)
  local v = redis.call('HMGET', TASK .. id, 'state', 'fence', 'cancel_requested', 'started_ms')
  if v[1] ~= 'RUNNING' or v[2] ~= fence then
    reply[at] = 'stale'
  else
    local until_ms = now + lease_ms
    if timeout_ms then until_ms = math.min(until_ms, tonumber(v[4]) + timeout_ms + lease_ms) end
    watch[#watch + 1] = until_ms
    watch[#watch + 1] = id
    if progress ~= '' then progressed[id] = progress end
    reply[at] = v[3] == '1' and 'cancel' or 'ok'
  end
end

keep_clock(now, seen)
-- A lease only grows: a beat that was under way when its run was deferred must not shorten the longer one.
if #watch > 0 then redis.call('ZADD', WATCH, 'GT', unpack(watch)) end
for id, progress in pairs(progressed) do
  redis.call('HSET', TASK .. id, 'progress', progress)
  redis.call('SPUBLISH', LIVE, id)
end
return reply
