#!lua flags=allow-oom
--- dispatch: move what is due from its lane to the ready stream of its route, as far as the
--- windows allow, sharing each stream between its tenants by weight.
--
-- KEYS  clock   hash   of the shard
-- ARGV  now_ms  int    0 = ask the server
--       limit   int    tasks moved by one call
-- REPLY now_ms, tasks moved, ms at which to call again (now = at once, -1 = when woken), expired,
--       ms at which the watch index must be looked at (-1 = never), and the schedules (likewise)
-- COST  O(limit · log tasks)
--
-- Fairness is start-time fair queueing: `turns:<stream>` holds the tenants that have due tasks,
-- scored by the service they have had divided by their weight; the lowest is served next. A
-- newcomer starts at the lowest score present, so idling earns nothing. A stream that may not be
-- served (window full, no live worker for its route) leaves `backlog` and is not looked at again
-- until `take` or `announce` puts it back: it costs nothing.
-- @include lib/clock
-- @include lib/keys
-- @include lib/move
-- @include lib/due
-- @include lib/ready
-- @include lib/dead
-- @include lib/notify
-- @include lib/occurrence
-- @include lib/verdict
-- @include lib/expire
-- @include lib/park
local LANES_MAX, STREAMS_MAX, FULL_MAX, QUANTUM = 64, 32, 4, 8
local WEIGHT = { critical = 27, high = 9, normal = 3, low = 1 }

if limit < 1 then return redis.error_reply('BADARG limit') end
local now, seen = read_clock(now_ms)
keep_clock(now, seen)
local moved, left = 0, limit

-- Read only where a task of this shard can expire at all.
local expiring = redis.call('EXISTS', EXPIRY) == 1 and { 'expires_ms', 'attempt' } or {}

local function notice_due_lanes()
  local due = redis.call('ZRANGE', LANES, '-inf', now, 'BYSCORE', 'LIMIT', 0, LANES_MAX)
  for _, text in ipairs(due) do
    local lane = lane_of(text)
    local turns = TURNS .. lane.stream
    redis.call('ZADD', turns, 'NX', lowest(turns), lane.tenant)
    enter_backlog(lane.stream)
  end
  if #due > 0 then redis.call('ZREM', LANES, unpack(due)) end
  return #due == LANES_MAX
end

-- Hands over up to `most` tasks of one lane; returns how many, and what remains of the lane.
local function serve_lane(lane, most)
  local ids, served = due_heads(lane, now, most), 0
  for _, id in ipairs(ids) do
    local key = TASK .. id
    local v = redis.call('HMGET', key, 'state', 'version', 'lane', unpack(expiring))
    local task = { id = id, key = key, state = v[1], version = tonumber(v[2]) or 1, lane = lane }
    if v[1] ~= 'PENDING' or v[3] ~= lane.text then
      redis.call('HINCRBY', STATS, 'stray:due', 1)
    elseif v[4] and not v[5] and tonumber(v[4]) <= now then
      expire(task, now)
    else
      hand_over(task, now)
      served = served + 1
    end
  end
  if #ids > 0 then due_remove(lane, ids) end
  return served, due_head_ms(lane)
end

local function serve_stream(stream, room)
  local turns = TURNS .. stream
  local alone = redis.call('ZCARD', turns) == 1
  local served = 0
  while room > 0 and left > 0 do
    local turn = redis.call('ZRANGE', turns, 0, 0, 'WITHSCORES')
    if not turn[1] then break end
    local lane = lane_in(stream, turn[1])
    local weight = alone and 1 or tonumber(setting('weight:' .. turn[1])) or 1
    local most = math.min(room, left, alone and left or math.max(1, math.floor(QUANTUM * weight)))
    local n, head_ms = serve_lane(lane, most)
    room, left, served = room - n, left - math.max(n, 1), served + n
    if head_ms and head_ms <= now then
      redis.call('ZADD', turns, turn[2] + n / weight, turn[1])
    else
      redis.call('ZREM', turns, turn[1])
      if head_ms then redis.call('ZADD', LANES, 'LT', head_ms, lane.text) end
      if not head_ms then redis.call('SREM', shard .. ':index:' .. lane.tenant, lane.text) end
    end
  end
  return served, room
end

-- A full stream comes back with the next `take`; should that signal be lost, here.
local function recheck_full()
  for _, stream in ipairs(redis.call('SRANDMEMBER', FULL, FULL_MAX)) do
    if room_in(stream) > 0 then
      redis.call('SREM', FULL, stream)
      enter_backlog(stream)
    end
  end
end

local expired = expire_due(now)
recheck_full()
local more = notice_due_lanes()
for _, stream in ipairs(redis.call('ZRANGE', BACKLOG, 0, STREAMS_MAX - 1)) do
  if left <= 0 then break end
  local _, priority, route = string.match(stream, '^([^:]+):([^:]+):([^:]+)$')
  local room = room_in(stream)
  if not is_live(route, now) then
    park(stream, 'no_worker', now)
  elseif room <= 0 then
    redis.call('ZREM', BACKLOG, stream)
    redis.call('SADD', FULL, stream)
  else
    local served, room_left = serve_stream(stream, room)
    moved = moved + served
    if redis.call('EXISTS', TURNS .. stream) == 0 then
      redis.call('ZREM', BACKLOG, stream)
    elseif room_left <= 0 then
      redis.call('ZREM', BACKLOG, stream)
      redis.call('SADD', FULL, stream)
    else
      redis.call('ZINCRBY', BACKLOG, served / (WEIGHT[priority] or 1), stream)
    end
  end
end
unpark_due(now)
due_flush()
ready_flush()
verdict_flush()
tell(now)

-- When is there something to do again?
local again = -1
local function at_latest(ms)
  if ms and (again < 0 or ms < again) then again = ms end
end
if more or redis.call('EXISTS', BACKLOG) == 1 then again = now end
for _, key in ipairs({ LANES, EXPIRY, PARKED }) do
  at_latest(tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]))
end
local function head_ms(key) return tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]) or -1 end
local owed_ms = head_ms(SCHEDULES)
return { now, moved, again, expired, head_ms(WATCH), owed_ms < math.huge and owed_ms or -1 }
