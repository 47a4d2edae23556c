#!lua flags=allow-oom
--- expire: tasks whose `expires_ms` passed before their first start fail, wherever they wait.
--
-- KEYS  clock   hash   of the shard
-- ARGV  now_ms  int    0 = ask the server
-- REPLY tasks that failed, ms of the next one to expire (-1 = none)
-- COST  O(100 · log tasks) at most
-- @include lib/clock
-- @include lib/keys
-- @include lib/move
-- @include lib/due
-- @include lib/dead
-- @include lib/notify
-- @include lib/occurrence
-- @include lib/verdict
-- @include lib/unhold
local EXPIRE_MAX = 100
local ERROR = '{"type":"Expired","message":"expires_at passed before the first start"}'
local now, seen = read_clock(now_ms)
keep_clock(now, seen)
local expired = 0

local function take_out(task, entry, held)
  if held then
    unhold(task)
  elseif task.state == 'PENDING' then
    due_remove(task.lane, { task.id })
  else
    redis.call('ZREM', WATCH, task.id)
    redis.call('XDEL', READY .. task.lane.stream, entry)
  end
end

local function expire(id)
  local v = redis.call('HMGET', TASK .. id, 'state', 'version', 'lane', 'attempt', 'entry', 'concurrency', 'held')
  redis.call('ZREM', EXPIRY, id)
  if v[4] or (v[1] ~= 'PENDING' and v[1] ~= 'QUEUED') then return end
  local task = { id = id, key = TASK .. id, state = v[1], version = tonumber(v[2]) or 1, lane = lane_of(v[3]), concurrency = v[6] }
  take_out(task, v[5], v[7])
  if move(task, 'FAILED', 'finished_ms', now, 'reason', 'expired', 'failure', 'expired', 'error', ERROR) then
    conclude(task, now)
    expired = expired + 1
  end
end

for _, id in ipairs(redis.call('ZRANGE', EXPIRY, '-inf', now, 'BYSCORE', 'LIMIT', 0, EXPIRE_MAX)) do expire(id) end
due_flush()
verdict_flush()
tell(now)
return { expired, tonumber(redis.call('ZRANGE', EXPIRY, 0, 0, 'WITHSCORES')[2]) or -1 }
