-- ready: the only code that adds to the ready streams: the bounded window that workers read.
local TAKE_BY_MS = 30000   -- a dispatched task nobody took is looked at again after this
local WINDOW = 64          -- entries waiting in one stream at first; take adapts it to the drain
local WEIGHT = { critical = 27, high = 9, normal = 3, low = 1 }   -- of the priority classes
local watching, take_by = {}, nil

local function is_live(route, now) 
  local until_ms = tonumber(redis.call('ZSCORE', ROUTES, route))
  return until_ms ~= nil and until_ms > now
end

local function window_of(stream) return tonumber(redis.call('HGET', shard .. ':window', stream)) or WINDOW end

-- How many more entries the stream's window takes. An entry of a running task stays in the stream
-- until its verdict, but is pending in the group: it does not wait.
local function room_in(stream)
  local key = READY .. stream
  local length = redis.call('XLEN', key)
  if length > 0 then
    local pending = redis.pcall('XPENDING', key, 'workers')
    length = length - (pending.err and 0 or pending[1])
  end
  return window_of(stream) - length
end

local function lowest(key) return tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]) or 0 end

-- `backlog` holds the streams that have due tasks and may be served, scored by the service had. Who
-- comes (back) stands a window behind the first of those that wait: a stream whose window is filled at each
-- call, and emptied before the next, would stand before them again for ever.
local function enter_backlog(stream)
  if redis.call('ZSCORE', PARKED, stream) or redis.call('SISMEMBER', FULL, stream) == 1 then return end
  local weight = WEIGHT[string.match(stream, '^[^:]+:([^:]+)')] or 1
  redis.call('ZADD', BACKLOG, 'NX', lowest(BACKLOG) + WINDOW / weight, stream)
end

local opened = {}
local function open_stream(stream)
  if opened[stream] then return end
  opened[stream] = true
  if redis.call('ZADD', UNREAD, 'NX', 0, stream) == 1 then
    redis.call('SADD', OPENED, stream)
    redis.pcall('XGROUP', 'CREATE', READY .. stream, 'workers', '0', 'MKSTREAM')
  end
end

local function hand_over(task, now)
  local lane = task.lane
  if not lane.ready then
    open_stream(lane.stream)
    lane.ready = READY .. lane.stream
    take_by = take_by or now + TAKE_BY_MS .. ''
  end
  local entry = redis.call('XADD', lane.ready, '*', 'id', task.id)
  move(task, 'QUEUED', 'queued_ms', now, 'entry', entry)
  local n = #watching
  watching[n + 1], watching[n + 2] = take_by, task.id
end

local function ready_flush()
  if #watching == 0 then return end
  redis.call('ZADD', WATCH, unpack(watching))
  redis.call('SPUBLISH', WAKE, 'work')
end
