#!lua flags=allow-oom
--- take: start up to `slots` waiting tasks for a worker: attempt, fence and lease in one step.
--
-- KEYS  clock     hash   of the shard
-- ARGV  now_ms    int    0 = ask the server
--       worker    str    who asks; must have announced itself to this shard
--       call      int    grows by one with each new call of this worker to this shard
--       slots     int    free slots of the worker
--       lease_ms  int    of a task that sets none
--       server    str    run id of the server as the caller knows it
-- REPLY now_ms, more (1 = a stream may hold more), then a grant a task: state, entry, lane, due_ms,
--       created_ms, attempt, fence, options, payload, lease_ms, uncounted, lost, expires_ms, id, nominal_ms, schedule
-- ERR   UNANNOUNCED  this shard does not know the worker (any more)
-- COST  O(slots + ready streams)
--
-- The same call number again (its reply was lost) answers with the same grants as far as they
-- still run. Classes share by weight, start-time fair as in dispatch. An entry that disagrees with
-- its task is stale: acknowledged, deleted, counted.
-- @include lib/clock
-- @include lib/keys
-- @include lib/move
-- @include lib/due
-- @include lib/ready
-- @include lib/acks
-- @include lib/archive
-- @include lib/rules
local STREAMS_MAX, SLOTS_MAX, CLASSES = 512, 128, { 'critical', 'high', 'normal', 'low' }
local BARRIER_MS = 2000
local WAIT_MS, WINDOW_MIN, WINDOW_MAX = 100, 4, 1024
local GOLDEN, SILVER = 0.6180339887498949, 0.41421356237309515

local now, seen = read_clock(now_ms)
local me = shard .. ':worker:' .. worker
local mine = redis.call('HMGET', me, 'call', 'grants', 'until_ms')
if not mine[3] or tonumber(mine[3]) <= now then return redis.error_reply('UNANNOUNCED ' .. worker) end
if slots < 1 then return { now, 0 } end
slots = math.min(slots, SLOTS_MAX)

local function grant_of(key)
  return redis.call('HMGET', key, 'state', 'entry', 'lane', 'due_ms', 'created_ms', 'attempt', 'fence',
    'options', 'payload', 'lease_ms', 'uncounted', 'lost', 'expires_ms', 'version', 'body', 'nominal_ms', 'schedule', 'concurrency')
end

-- grant: the reply's row. The slots of what only this script needs carry what follows them.
local function complete(grant, id, attempt, fence)
  if grant[15] then grant[9] = redis.call('GET', BODY .. id) end
  grant[1], grant[6], grant[7], grant[14], grant[15], grant[16] = 'RUNNING', attempt, fence, id, grant[16], grant[17]
  grant[17], grant[18] = nil, nil
  return grant
end

-- An older call that was under way when its worker had asked again: nobody listens any more.
if mine[1] and call < tonumber(mine[1]) then return { now, 1 } end
if tonumber(mine[1]) == call then
  local again = { now, 1 }
  for id, fence in string.gmatch(mine[2], '(%S+)=(%S+)') do
    local grant = grant_of(TASK .. id)
    if grant[1] == 'RUNNING' and grant[7] == fence then
      again[#again + 1] = complete(grant, id, tonumber(grant[6]), fence)
    end
  end
  return again
end

-- Another server than last time (failover, restart): no start until its time is past all that the
-- lost one may have granted, so that a fence never repeats; and what renewed its lease in vain has
-- one lease more.
local known_server, barrier_ms = unpack(redis.call('HMGET', clock, 'server', 'barrier_ms'))
keep_clock(now, seen)
if server ~= '' and known_server ~= server then
  redis.call('HSET', clock, 'server', server)
  if known_server then
    barrier_ms = seen.ms + BARRIER_MS
    redis.call('HSET', clock, 'barrier_ms', barrier_ms, 'hold_ms', now + seen.lease_ms)
  end
end
if barrier_ms and now < tonumber(barrier_ms) then return { now, 1 } end

local function serves(queue, route)
  local s = redis.call('SMISMEMBER', me .. ':serves', 'queue:' .. queue, 'queue:*', 'route:' .. route)
  return (s[1] == 1 or s[2] == 1) and s[3] == 1
end

-- Streams by class; those of strict queues by queue and class.
local classes, total, strict = {}, 0, {}
local unread = redis.call('ZCARD', UNREAD)
local first_unread = unread > STREAMS_MAX and (call * STREAMS_MAX) % unread or 0
for _, stream in ipairs(redis.call('ZRANGE', UNREAD, first_unread, first_unread + STREAMS_MAX - 1)) do
  local queue, priority, route = string.match(stream, '^([^:]+):([^:]+):([^:]+)$')
  if serves(queue, route) then
    local of = classes
    if rules_of('queue:' .. queue).strict then
      strict[queue] = strict[queue] or {}
      of = strict[queue]
    elseif not of[priority] then
      total = total + 1
    end
    of[priority] = of[priority] or {}
    table.insert(of[priority], stream)
  end
end

local grants, granted, emptied, first_of = { now, 0 }, {}, {}, {}   -- first_of: the first task started of each stream
local watch = {}
local first_fence, now_text, until_text = string.format('%.0f', now * 256), now .. '', now + lease_ms .. ''

local function start(stream, entry, id)
  local key = TASK .. id
  local grant = grant_of(key)
  local lane = grant[3] and lane_of(grant[3])
  local task = { id = id, key = key, state = grant[1], version = tonumber(grant[14]) or 1, lane = lane, concurrency = grant[18] }
  if grant[1] ~= 'QUEUED' or grant[2] ~= entry then
    redis.call('HINCRBY', STATS, 'stray:entry', 1)
    ack(stream, entry)
    return false
  end
  -- Not due any more, paused, or past its `expires_ms`: back to where schedulers see to it.
  local expired = grant[13] and not grant[6] and tonumber(grant[13]) <= now
  if tonumber(grant[4]) > now or expired or pause_of(lane) then
    move(task, 'PENDING')
    due_add(lane, id, tonumber(grant[4]))
    redis.call('ZREM', WATCH, id)
    ack(stream, entry)
    return false
  end
  if grant[6] then archive_attempt(task.key, id) end
  if grant[13] then redis.call('ZREM', EXPIRY, id) end
  local attempt = (tonumber(grant[6]) or 0) + 1
  local fence = first_fence
  if grant[7] then fence = string.format('%.0f', math.max(tonumber(grant[7]) + 1, now * 256)) end
  move(task, 'RUNNING', 'attempt', attempt, 'fence', fence, 'worker', worker, 'started_ms', now_text)
  local n = #watch
  watch[n + 1], watch[n + 2] = grant[10] and now + grant[10] or until_text, id
  grants[#grants + 1] = complete(grant, id, attempt, fence)
  n = #granted
  granted[n + 1], granted[n + 2], granted[n + 3], granted[n + 4] = id, '=', fence, ' '
  return true
end

-- Reads up to `most` entries of one stream and starts them; returns how many were read.
local function read_stream(stream, most)
  local reply = redis.pcall('XREADGROUP', 'GROUP', 'workers', worker, 'COUNT', most, 'STREAMS', READY .. stream, '>')
  if reply and reply.err then
    redis.pcall('XGROUP', 'CREATE', READY .. stream, 'workers', '0', 'MKSTREAM')
    reply = redis.pcall('XREADGROUP', 'GROUP', 'workers', worker, 'COUNT', most, 'STREAMS', READY .. stream, '>')
  end
  local entries = reply and not reply.err and reply[1] and reply[1][2] or {}
  local started = 0
  for _, entry in ipairs(entries) do
    if entry[2] and start(stream, entry[1], entry[2][2]) then
      started = started + 1
      first_of[stream] = first_of[stream] or entry[2][2]
    end
  end
  if #entries < most then emptied[stream] = true end
  return #entries, started
end

-- With which of `n` that take turns to begin, counted from 0. Multiples of an irrational number fall on all
-- alike in whatever rhythm the calls come: of a class that is served at every fourth call, `call % n` may
-- meet the same stream each time.
local function begin_at(n, step) return math.floor(call * step % 1 * n) end

-- Serves one class: its streams in turn, beginning with another one at each call; those that gave
-- all they were asked for again, until there is no room or nothing left.
local function read_class(streams, most)
  local started = 0
  while started < most and #streams > 0 do
    local giving, first = {}, begin_at(#streams, GOLDEN)
    for n = 0, #streams - 1 do
      if started >= most then break end
      local stream = streams[(first + n) % #streams + 1]
      local share = math.max(1, math.floor((most - started) / (#streams - n)))
      local read, began = read_stream(stream, share)
      started = started + began
      if read == share then giving[#giving + 1] = stream end
    end
    streams = giving
  end
  if #streams > 0 then grants[2] = 1 end
  return started
end

local function by_weight(slots_left)
  local passes = redis.call('HMGET', shard .. ':classes', unpack(CLASSES))
  local pass, floor_pass = {}, nil
  for n, class in ipairs(CLASSES) do
    if classes[class] then
      pass[class] = tonumber(passes[n]) or 0
      floor_pass = math.max(floor_pass or 0, pass[class])
    end
  end
  -- A class that was idle starts level with the others: at most one weight's worth behind.
  for class in pairs(pass) do pass[class] = math.max(pass[class], floor_pass - 1) end
  local left = slots_left
  while left > 0 and next(pass) do
    local first
    for _, class in ipairs(CLASSES) do
      if pass[class] and (not first or pass[class] < pass[first]) then first = class end
    end
    local most = math.min(left, WEIGHT[first])
    local started = read_class(classes[first], most)
    left = left - started
    pass[first] = pass[first] + started / WEIGHT[first]
    redis.call('HSET', shard .. ':classes', first, pass[first])
    if started < most then pass[first] = nil end
  end
  return slots_left - left
end

local function serve_usual(most)
  if total > 1 then return by_weight(most) end
  local _, streams = next(classes)
  return read_class(streams, most)
end

-- A strict queue gives its higher class all it wants before a lower one gets anything.
local function serve_strict(of, most)
  local started = 0
  for _, class in ipairs(CLASSES) do
    if of[class] and started < most then started = started + read_class(of[class], most - started) end
  end
  return started
end

-- Strict queues share the slots evenly, with all others together as one of them; what some do not
-- want goes to those that want more.
local function share_evenly()
  local parts = {}
  for queue in pairs(strict) do parts[#parts + 1] = queue end
  if total > 0 then parts[#parts + 1] = '' end
  table.sort(parts)
  while slots > 0 and #parts > 0 do
    local giving, first = {}, begin_at(#parts, SILVER)
    for n = 0, #parts - 1 do
      if slots < 1 then break end
      local part = parts[(first + n) % #parts + 1]
      local share = math.max(1, math.floor(slots / (#parts - n)))
      local started = part == '' and serve_usual(share) or strict[part] and serve_strict(strict[part], share)
      slots = slots - started
      if started == share then giving[#giving + 1] = part end
    end
    parts = giving
  end
end

if next(strict) then
  share_evenly()
elseif total > 0 then
  serve_usual(slots)
end

-- A window doubles when this call ran its stream dry, more was due, and the entries had not waited for
-- WAIT_MS; that of a full stream halves when they had waited longer and no more than it takes wait still (more: it
-- was halved just now, and they go first). With room again a full stream goes back to the dispatchers.
-- So where d tasks a second start from a stream, its window comes to rest at 2·d·WAIT_MS at most, never below
-- WINDOW_MIN, and an entry waits in it for window / d: 2·WAIT_MS, or WINDOW_MIN / d where that is longer. A
-- drain that slows down finds at most WINDOW_MAX entries there.
local function refill(stream)
  local is_full = redis.call('SISMEMBER', FULL, stream) == 1
  local first = first_of[stream]
  if not is_full and not (first and redis.call('EXISTS', TURNS .. stream) == 1) then return end
  local window, room = window_of(stream), room_in(stream)
  local queued_ms = first and tonumber(redis.call('HGET', TASK .. first, 'queued_ms')) or now
  local has_waited, is_dry = now - queued_ms > WAIT_MS, room >= window
  local fits = window
  if first and is_dry and not has_waited then
    fits = math.max(math.min(window * 2, WINDOW_MAX), window)
  elseif is_full and has_waited and not is_dry and room >= 0 then
    fits = math.max(math.floor(window / 2), WINDOW_MIN)
  end
  if fits ~= window then redis.call('HSET', shard .. ':window', stream, fits) end
  if not is_full or room + fits - window <= 0 then return end
  redis.call('SREM', FULL, stream)
  enter_backlog(stream)
  redis.call('SPUBLISH', WAKE, 'due 0')
end

strict[''] = classes
for _, of in pairs(strict) do
  for _, streams in pairs(of) do
    for _, stream in ipairs(streams) do refill(stream) end
  end
end
for stream in pairs(emptied) do redis.call('ZREM', UNREAD, stream) end
if #watch > 0 then redis.call('ZADD', WATCH, unpack(watch)) end
redis.call('HSET', me, 'call', call, 'grants', table.concat(granted))
due_flush()
ack_flush()
tell(now)
return grants
