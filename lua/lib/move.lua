-- move: the only code that writes `state`. It knows the legal edges and notes each move; the notes
-- become counters and one event per call (`tell`).
local EDGES = {
  PENDING = { QUEUED = true, CANCELLED = true, FAILED = true },
  QUEUED = { RUNNING = true, PENDING = true, CANCELLED = true, FAILED = true },
  RUNNING = { SUCCESS = true, PENDING = true, FAILED = true, CANCELLED = true },
  SUCCESS = {},
  FAILED = { PENDING = true },
  CANCELLED = { PENDING = true },
}
local NEW = 'NEW'
-- A dispatched task uses its permits until it ends or waits again.
local HOLDS, UNFINISHED = { QUEUED = true, RUNNING = true }, { PENDING = true, QUEUED = true, RUNNING = true }
local EVENTS_MAX = 1000   -- entries of up to a batch of ids each: at most about 5 MB a shard
local moves, gauges, freed = {}, {}, {}

local function bump(field, by) gauges[field] = (gauges[field] or 0) + by end

-- Ids are collected by lane and edge; `tell` counts them.
local function note(lane, from, to, id)
  local out = lane[from]
  if not out then
    out = {}
    lane[from] = out
  end
  local ids = out[to]
  if not ids then
    ids = { lane = lane, from = from, to = to }
    out[to] = ids
    moves[#moves + 1] = ids
  end
  ids[#ids + 1] = id
end

-- A task with a concurrency key ('hash:limit') counts for it while it holds its permit.
local function count_key(task, from, to)
  local by = (HOLDS[to] and 1 or 0) - (HOLDS[from] and 1 or 0)
  if by == 0 then return end
  local limit = 'k/' .. string.match(task.concurrency, '^%x+')
  bump(limit, by)
  if by < 0 then freed[limit] = (freed[limit] or 0) + 1 end
end

-- task: {id, key, state, version, lane, concurrency}. The caller has looked at the state; an edge that does not
-- exist is a bug of ours: it is refused, counted and told, never written.
local function move(task, to, ...)
  local from, version = task.state, task.version + 1
  if not EDGES[from][to] then
    redis.call('HINCRBY', STATS, 'illegal:' .. task.state .. '>' .. to, 1)
    redis.log(redis.LOG_WARNING, 'tasksched: illegal move ' .. task.id .. ' ' .. task.state .. '>' .. to)
    return false
  end
  redis.call('HSET', task.key, 'state', to, 'version', version, ...)
  note(task.lane, from, to, task.id)
  if task.concurrency then count_key(task, from, to) end
  task.state, task.version = to, version
  return true
end

-- A record that did not exist before, with its fields but the state.
local function create(lane, id, key, ...)
  redis.call('HSET', key, 'state', 'PENDING', ...)
  note(lane, NEW, 'PENDING', id)
end

-- A waiting task changes its lane: the gauges follow.
local function transfer(task, from, to)
  if from.tenant == to.tenant and from.queue == to.queue then return end
  bump(from.tenant .. ':' .. from.queue .. ':PENDING', -1)
  bump(to.tenant .. ':' .. to.queue .. ':PENDING', 1)
end

-- Adds to many counters of a hash by one read and one write; what comes to nothing leaves.
local function raise(key, changes)
  local names, values, empty, n = {}, {}, {}, 0
  for name, by in pairs(changes) do
    if by ~= 0 then
      n = n + 1
      names[n] = name
    end
  end
  if n == 0 then return end
  local before = redis.call('HMGET', key, unpack(names))
  for at = 1, n do
    local value = (tonumber(before[at]) or 0) + changes[names[at]]
    if value == 0 then
      empty[#empty + 1] = names[at]
    else
      values[#values + 1] = names[at]
      values[#values + 1] = value
    end
  end
  if #values > 0 then redis.call('HSET', key, unpack(values)) end
  if #empty > 0 then redis.call('HDEL', key, unpack(empty)) end
end

-- 't/' and 'q/': tasks of a tenant, of a queue, that hold a permit; 'p/': those of a tenant that have
-- not finished, the reserved queue apart.
local function count_permits(lane, from, to, n)
  local held = (HOLDS[to] and n or 0) - (HOLDS[from] and n or 0)
  if held ~= 0 then
    bump('t/' .. lane.tenant, held)
    bump('q/' .. lane.queue, held)
    if held < 0 then
      for _, limit in ipairs({ 't/' .. lane.tenant, 'q/' .. lane.queue }) do freed[limit] = (freed[limit] or 0) - held end
    end
  end
  if lane.queue == 'notifications' then return end
  local open = (UNFINISHED[to] and n or 0) - (UNFINISHED[from] and n or 0)
  if open ~= 0 then bump('p/' .. lane.tenant, open) end
  if open < 0 then freed['p/' .. lane.tenant] = (freed['p/' .. lane.tenant] or 0) - open end
end

-- Where a limit is in force here, the dispatcher looks who may go on.
local function tell_freed()
  if not next(freed) or redis.call('EXISTS', ALLOT) == 0 then return end
  local told = false
  for limit, n in pairs(freed) do
    if redis.call('HEXISTS', ALLOT, limit) == 1 then
      redis.call('ZINCRBY', FREED, n, limit)
      told = true
    end
  end
  if told then redis.call('SPUBLISH', WAKE, 'due 0') end
end

-- What the first move into a lane, or one back to it, is called in the log of events.
local TOLD = { [NEW] = 'CREATED', RUNNING = 'RETRYING', FAILED = 'REDRIVEN', CANCELLED = 'REDRIVEN' }

local function tell(now)
  local totals, told, fields = {}, {}, {}
  for _, ids in ipairs(moves) do
    local lane, to, n = ids.lane, ids.to, #ids
    local owner = lane.tenant .. ':' .. lane.queue .. ':'
    if ids.from ~= NEW then bump(owner .. ids.from, -n) end
    bump(owner .. to, n)
    count_permits(lane, ids.from, to, n)
    local total = lane.queue .. ':' .. to
    totals[total] = (totals[total] or 0) + n
    local text = table.concat(ids, ' ')
    local event = owner .. (to == 'PENDING' and TOLD[ids.from] or to)
    told[event] = told[event] and told[event] .. ' ' .. text or text
  end
  raise(COUNTS, gauges)
  tell_freed()
  raise(STATS, totals)
  for event, text in pairs(told) do
    fields[#fields + 1] = event
    fields[#fields + 1] = text
  end
  if #fields > 0 then
    redis.call('XADD', EVENTS, 'MAXLEN', '~', EVENTS_MAX, '*', 'ms', now, unpack(fields))
  end
end
