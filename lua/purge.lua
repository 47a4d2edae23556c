#!lua flags=allow-oom
--- purge: finished tasks of a tenant are removed by hand, before retention would.
--
-- KEYS  clock        hash   of the shard
-- ARGV  now_ms       int    0 = ask the server
--       tenant       str    whose tasks they must be
--       keyed_ms     int    how long an idempotency key is remembered after the creation
--       unkeyed_ms   int    likewise an id without a key
--       op           str    names this call; the same one again is answered again
-- ROWS  id           str
--       version      opt    the only one that is meant
-- REPLY a word a row: 'purged', 'missing', 'state' (it has not finished), 'version' (it has another one)
-- COST  O(rows · log finished)
-- @include lib/clock
-- @include lib/keys
-- @include lib/move
-- @include lib/due
-- @include lib/dead
-- @include lib/notify
-- @include lib/occurrence
-- @include lib/verdict
-- @include lib/remove
local MEMORY_MS = 60000
local FINAL = { SUCCESS = true, FAILED = true, CANCELLED = true }
if op == '' then return redis.error_reply('BADARG op') end
local now, seen = read_clock(now_ms)
local reply, removing = {}, {}
local done_before = redis.call('GET', shard .. ':purged:' .. op) or ''

for at = 1, rows do
  local id, version = row(at)
  local v = redis.call('HMGET', TASK .. id, 'state', 'lane', 'version')
  local lane = v[2] and lane_of(v[2])
  if removing[id] or (not v[1] and string.find(done_before, ' ' .. id .. ' ', 1, true)) then
    reply[at] = 'purged'
  elseif not v[1] or lane.tenant ~= tenant then
    reply[at] = 'missing'
  elseif not FINAL[v[1]] then
    reply[at] = 'state'
  elseif version and version ~= (tonumber(v[3]) or 1) then
    reply[at] = 'version'
  else
    reply[at] = 'purged'
    removing[id] = true
  end
end
if not next(removing) then return reply end

keep_clock(now, seen)
local ids = { done_before ~= '' and done_before or ' ' }
for id in pairs(removing) do
  remove_task(id, now)
  ids[#ids + 1] = id .. ' '
end
redis.call('SET', shard .. ':purged:' .. op, table.concat(ids), 'PX', MEMORY_MS)
return reply
