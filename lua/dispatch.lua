#!lua flags=allow-oom
--- dispatch: move what is due from its lane to the ready stream of its route, as far as the
--- windows allow, sharing each stream between its tenants by weight.
--
-- KEYS  clock   hash   of the shard
-- ARGV  now_ms  int    0 = ask the server
--       limit   int    tasks moved by one call
-- REPLY now_ms, tasks moved, ms at which to call again (now = at once, -1 = when woken), ms at which
--       the next task expires (-1 = none), the watch index must be looked at, and the schedules, then what the homes of limits are asked: {limit, capacity, permits, epoch, want, head_ms} each
-- COST  O(limit · log tasks)
--
-- Fairness is start-time fair queueing: `turns:<stream>` holds the tenants that have due tasks,
-- scored by the service they have had divided by their weight; the lowest is served next. A
-- newcomer starts at the lowest score present, so idling earns nothing; whose last task went on keeps
-- its score until the others have had as much, so that coming one by one earns nothing either. A stream that may
-- not be served (window full, no live worker for its route, paused, at its limit) leaves `backlog`, a lane
-- of a tenant that may not go on leaves `turns`; neither is looked at again until what it waits for is
-- there: it costs nothing.
-- @include lib/clock
-- @include lib/keys
-- @include lib/move
-- @include lib/due
-- @include lib/ready
-- @include lib/rules
-- @include lib/limits
-- @include lib/hold
-- @include lib/park
local LANES_MAX, STREAMS_MAX, FULL_MAX, QUANTUM, RECHECK_MAX = 64, 32, 4, 8, 100

if limit < 1 then return redis.error_reply('BADARG limit') end
local now, seen = read_clock(now_ms)
keep_clock(now, seen)
local moved, left = 0, limit

-- Read only where a task of this shard can expire, or has a concurrency key, at all.
local rare = {}
if redis.call('EXISTS', EXPIRY, KEYED) > 0 then rare = { 'concurrency', 'due_ms', 'expires_ms', 'attempt' } end

-- So many tasks wait for a limit, about; and when the earliest of them was due.
local function wanted(blocked)
  local want, first_ms = 0, now
  for _, name in ipairs(redis.call('SRANDMEMBER', blocked, LOOK_MAX)) do
    local lane = lane_of(name)
    want = want + (lane and redis.call('ZCOUNT', lane.due, '-inf', now) or QUANTUM)
    if lane then first_ms = math.min(first_ms, due_head_ms(lane) or now) end
  end
  return math.min(want, WANT_MAX), first_ms
end

-- The home of the limit has not answered.
local function ask_again(limit_asked)
  redis.call('ZREM', PARKED, '!' .. limit_asked)
  if string.sub(limit_asked, 1, 2) == 'k/' and ask_for_held(limit_asked, now) then return end
  local want, first_ms = wanted(BLOCKED .. limit_asked)
  demand(limit_asked, 0, want, first_ms, now)
end

-- What became free goes to who waits here; while other shards wait too, back to the limit's home,
-- which gives it to the earliest. True while more could go on here.
local function pass_on(name, n)
  if not string.match(name, '^%+?[tqpk]/') then return unblock(name) end
  local is_granted = string.sub(name, 1, 1) == '+'
  local freed_limit = is_granted and string.sub(name, 2) or name
  local is_key = string.sub(freed_limit, 1, 2) == 'k/'
  local permits, _, contended = allotment(freed_limit)
  local blocked = (is_key and HELD or BLOCKED) .. string.sub(freed_limit, is_key and 3 or 1)
  local waiting = redis.call('EXISTS', blocked) == 1
  if not is_granted and (contended or (is_key and not waiting)) then
    give_back(freed_limit, n)
    if waiting and is_key then
      ask_for_held(freed_limit, now)
    else
      local want, first_ms = 0, now
      if waiting then want, first_ms = wanted(blocked) end
      demand(freed_limit, 0, want, first_ms, now)
    end
    return false
  end
  if used(freed_limit) >= permits then return false end
  if is_key then return let_go(freed_limit) end
  return unblock(freed_limit)
end

-- A setting has changed: what it held looks again, and what it limits asks anew. What is not in use goes back to
-- the home, which hears of the new limit: a lower one holds from then on.
local UNLIMITED = 1000000000
local function notice_setting(name)
  local kind, of = string.match(name, '^(%a+):([^:]+)$')
  if kind ~= 'tenant' and kind ~= 'queue' then return end
  local limit_of = string.sub(kind, 1, 1) .. '/' .. of
  if redis.call('HEXISTS', ALLOT, limit_of) == 1 then
    local permits, epoch, contended = allotment(limit_of)
    -- Begun while no limit was in force: a new epoch, or the home would not believe in more.
    if used(limit_of) > permits and rules_of(name).running then
      permits, epoch = used(limit_of), epoch == 0 and 0 or epoch + 1
    end
    keep_allotment(limit_of, permits, epoch, contended, 0)
    give_back(limit_of, permits)
    demand(limit_of, rules_of(name).running or UNLIMITED, 0, now, now)
  end
  for _, blocked in ipairs({ limit_of, 'r' .. limit_of }) do
    if unblock(blocked) then redis.call('ZADD', FREED, 0, blocked) end
  end
end

local function notice_freed()
  local found = redis.call('ZPOPMIN', FREED, FREED_MAX)
  for at = 1, #found, 2 do
    notice_setting(found[at])
    if pass_on(found[at], tonumber(found[at + 1])) then redis.call('ZADD', FREED, found[at + 1], found[at]) end
  end
  return #found == 2 * FREED_MAX
end

local function notice_due_lanes()
  local due = redis.call('ZRANGE', LANES, '-inf', now, 'BYSCORE', 'LIMIT', 0, LANES_MAX)
  for _, text in ipairs(due) do
    local lane = lane_of(text)
    local field = paused_by(lane.queue, lane.tenant)
    if field then
      park(text, 'paused', field, now)
    else
      local turns = TURNS .. lane.stream
      redis.call('ZADD', turns, 'NX', lowest(turns), lane.tenant)
      enter_backlog(lane.stream)
    end
  end
  if #due > 0 then redis.call('ZREM', LANES, unpack(due)) end
  return #due == LANES_MAX
end

-- Hands over up to `most` tasks of one lane; returns how many, and what remains of the lane.
local function serve_lane(lane, most)
  local ids, gone, served = due_heads(lane, now, most), {}, 0
  for _, id in ipairs(ids) do
    local key = TASK .. id
    local v = redis.call('HMGET', key, 'state', 'version', 'lane', unpack(rare))
    local task = { id = id, key = key, state = v[1], version = tonumber(v[2]) or 1, lane = lane, concurrency = v[4] }
    gone[#gone + 1] = id
    if v[1] ~= 'PENDING' or v[3] ~= lane.text then
      redis.call('HINCRBY', STATS, 'stray:due', 1)
    elseif v[6] and not v[7] and tonumber(v[6]) <= now then
      gone[#gone] = nil   -- left to `expire`, which is due by now
    elseif v[4] and must_hold(v[4], tonumber(v[5])) then
      hold(task, v[4], tonumber(v[5]), now)
    else
      hand_over(task, now)
      served = served + 1
      if v[4] then
        local limit_of_key = key_of(v[4])
        spent[limit_of_key] = (spent[limit_of_key] or 0) + 1
      end
    end
  end
  if #gone > 0 then due_remove(lane, gone) end
  return served, due_head_ms(lane), #ids
end

-- How many tasks of the lane may go on, of at most `most`; parks it where none may.
local function lane_room(lane, most)
  local rules = rules_of('tenant:' .. lane.tenant)
  if not (rules.running or rules.rate) then return most end
  local due = redis.call('ZCOUNT', lane.due, '-inf', now)
  local room, stopped, why = allowance('t', lane.tenant, rules, most, math.min(due, WANT_MAX), due_head_ms(lane) or now, now)
  if room == 0 then park(lane.text, why, stopped, now) end
  return room
end

-- Those who wait for nothing and would be next: their score is no more than the others had.
local function dismiss(turns, stream)
  for _ = 1, LANES_MAX do
    local tenant = redis.call('ZRANGE', turns, 0, 0)[1]
    if not tenant or redis.call('EXISTS', lane_in(stream, tenant).due) == 1 then return end
    redis.call('ZREM', turns, tenant)
  end
end

local function serve_stream(stream, room)
  local turns, rests = TURNS .. stream, false
  local tenants, served = redis.call('ZCARD', turns), 0
  while room > 0 and left > 0 do
    local turn = redis.call('ZRANGE', turns, 0, 0, 'WITHSCORES')
    if not turn[1] then break end
    local lane = lane_in(stream, turn[1])
    local field = paused_by(lane.queue, lane.tenant)
    local alone = tenants == 1
    local weight = alone and 1 or rules_of('tenant:' .. turn[1]).weight or 1
    local most = math.min(room, left, alone and left or math.max(1, math.floor(QUANTUM * weight)))
    if field then
      park(lane.text, 'paused', field, now)
      most = 0
    else
      most = lane_room(lane, most)
    end
    if most == 0 then
      redis.call('ZREM', turns, turn[1])
      tenants, left = tenants - 1, left - 1
    else
      local n, head_ms, looked = serve_lane(lane, most)
      if has_rules then spend(lane, n, now) end
      room, left, served = room - n, left - math.max(looked, 1), served + n
      local is_due = head_ms and head_ms <= now
      if is_due or (n > 0 and not alone) then
        redis.call('ZADD', turns, turn[2] + n / weight, turn[1])
        rests = rests or not is_due
      else
        redis.call('ZREM', turns, turn[1])
        tenants = tenants - 1
      end
      if head_ms and not is_due then redis.call('ZADD', LANES, 'LT', head_ms, lane.text) end
      if not head_ms then redis.call('SREM', shard .. ':index:' .. lane.tenant, lane.text) end
    end
  end
  if rests then dismiss(turns, stream) end
  return served
end

-- How many tasks the queue's own rules let go on, of at most `room`; parks the stream where none may.
local function stream_room(stream, queue, room)
  local field = paused_by(queue)
  if field then
    park(stream, 'paused', field, now)
    return 0
  end
  local rules = rules_of('queue:' .. queue)
  if not (rules.running or rules.rate) then return room end
  local free, stopped, why = allowance('q', queue, rules, room, room, now, now)
  if free == 0 then park(stream, why, stopped, now) end
  return free
end

-- A parked stream whose tasks are all gone (cancelled, edited) goes, tenant by tenant, or streams of
-- versions that nobody serves any more would pile up.
local function recheck_stream(stream, now)
  local tenant = redis.call('ZRANGE', TURNS .. stream, 0, 0)[1]
  local lane = tenant and lane_in(stream, tenant)
  if not tenant then
    leave_park(stream)
  elseif redis.call('EXISTS', DUE .. lane.text) == 0 then
    redis.call('ZREM', TURNS .. stream, tenant)
    redis.call('SREM', shard .. ':index:' .. tenant, lane.text)
  elseif is_live(lane.route, now) then
    unpark(stream)
  else
    redis.call('ZADD', PARKED, now + RECHECK_MS.no_worker, stream)
  end
end

local function unpark_due()
  for _, name in ipairs(redis.call('ZRANGE', PARKED, '-inf', now, 'BYSCORE', 'LIMIT', 0, RECHECK_MAX)) do
    local mark = string.sub(name, 1, 1)
    if mark == '!' then
      ask_again(string.sub(name, 2))
    elseif string.sub(name, 1, 2) == 'k/' then
      ask_for_held(name, now)
    elseif is_stream(name) then
      recheck_stream(name, now)
    else
      unpark(name)
    end
  end
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

local function fill(stream)
  redis.call('ZREM', BACKLOG, stream)
  redis.call('SADD', FULL, stream)
end

local more = notice_freed()
due_flush()
recheck_full()
more = notice_due_lanes() or more
for _, stream in ipairs(redis.call('ZRANGE', BACKLOG, 0, STREAMS_MAX - 1)) do
  if left <= 0 then break end
  local queue, priority, route = string.match(stream, '^([^:]+):([^:]+):([^:]+)$')
  local window = room_in(stream)
  if not is_live(route, now) then
    park(stream, 'no_worker', 'route:' .. route, now)
  elseif window <= 0 then
    fill(stream)
  else
    local room = stream_room(stream, queue, window)
    if room > 0 then
      local served = serve_stream(stream, room)
      moved = moved + served
      if redis.call('EXISTS', TURNS .. stream) == 0 then
        redis.call('ZREM', BACKLOG, stream)
      elseif served >= window then
        fill(stream)
      else
        redis.call('ZINCRBY', BACKLOG, served / (WEIGHT[priority] or 1), stream)
      end
    end
  end
end
unpark_due()

-- Permits that nobody here uses while others wait for them.
for touched_limit, capacity in pairs(touched) do
  local permits, _, contended = allotment(touched_limit)
  if contended and permits > used(touched_limit) and redis.call('EXISTS', BLOCKED .. touched_limit) == 0 then
    give_back(touched_limit, permits)
    demand(touched_limit, capacity, 0, now, now)
  end
end
due_flush()
ready_flush()
tell(now)

-- When is there something to do again?
local again = -1
local function at_latest(ms)
  if ms and (again < 0 or ms < again) then again = ms end
end
if more or redis.call('EXISTS', BACKLOG, FREED) > 0 then again = now end
for _, key in ipairs({ LANES, PARKED }) do
  at_latest(tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]))
end
local function head_ms(key) return tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]) or -1 end
local owed_ms = head_ms(SCHEDULES)
local reply = { now, moved, again, head_ms(EXPIRY), head_ms(WATCH), owed_ms < math.huge and owed_ms or -1 }
for name, asked in pairs(demands) do
  local permits, epoch = allotment(name)
  reply[#reply + 1] = { name, asked.capacity .. '', permits, epoch, asked.want, asked.head_ms }
end
return reply
