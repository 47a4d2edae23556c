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
local noted, counted, totals = {}, {}, {}

local function add(map, field, by) map[field] = (map[field] or 0) + by end

local function note(id, lane, from, to)
  local owner = lane.tenant .. ':' .. lane.queue .. ':'
  if from then add(counted, owner .. from, -1) end
  add(counted, owner .. to, 1)
  add(totals, lane.queue .. ':' .. to, 1)
  local ids = noted[to]
  if ids then ids[#ids + 1] = id else noted[to] = { id } end
end

-- task: {id, key, state, version, lane}. The caller has looked at the state; an edge that does not
-- exist is a bug of ours: it is refused, counted and told, never written.
local function move(task, to, ...)
  if not EDGES[task.state][to] then
    redis.call('HINCRBY', STATS, 'illegal:' .. task.state .. '>' .. to, 1)
    redis.log(redis.LOG_WARNING, 'tasksched: illegal move ' .. task.id .. ' ' .. task.state .. '>' .. to)
    return false
  end
  redis.call('HSET', task.key, 'state', to, 'version', task.version + 1, ...)
  note(task.id, task.lane, task.state, to)
  task.state, task.version = to, task.version + 1
  return true
end

-- A record that did not exist before; fields: a flat list, without the state.
local function create(task, fields)
  redis.call('HSET', task.key, 'state', 'PENDING', unpack(fields))
  task.state, task.version = 'PENDING', 1
  note(task.id, task.lane, nil, 'PENDING')
end

-- A waiting task changes its lane: the gauges follow.
local function transfer(task, from, to)
  if from.tenant == to.tenant and from.queue == to.queue then return end
  add(counted, from.tenant .. ':' .. from.queue .. ':PENDING', -1)
  add(counted, to.tenant .. ':' .. to.queue .. ':PENDING', 1)
end

local function tell(now)
  for field, by in pairs(counted) do
    if by ~= 0 then redis.call('HINCRBY', COUNTS, field, by) end
  end
  local fields = {}
  for field, by in pairs(totals) do redis.call('HINCRBY', STATS, field, by) end
  for state, ids in pairs(noted) do
    fields[#fields + 1] = state
    fields[#fields + 1] = table.concat(ids, ' ')
  end
  if #fields > 0 then
    redis.call('XADD', EVENTS, 'MAXLEN', '~', 10000, '*', 'ms', now, unpack(fields))
  end
end
